"""The origin of the numbers: facts from the rows, from results.meta.json, and about this program."""

import json
import platform

import matplotlib
import numpy as np
import pandas as pd

from .. import __version__
from ..stats.intervals import FEWEST_BLOCKS, LEVEL, UNIT
from ..stats.words import count

CONFIG_KEYS = ("config", "resolved_config")
SHOWN_ELSEWHERE = (*CONFIG_KEYS, "notes", "columns")
LISTED = 40  # longer lists are cut, and their length is added


def run_name(meta):
    """The name in the configuration, or "" if there is none."""
    config = _config(meta)
    return str(config.get("name", "")) if isinstance(config, dict) else ""


def run_date(meta):
    """The first text in the meta file whose key names a date, or "" if there is none."""
    dated = (
        value for key, value in meta.items() if key.endswith(("_utc", "date")) and isinstance(value, str)
    )
    return next(dated, "")


def config_text(meta):
    """The resolved configuration as text to show, or "" if the meta file has none."""
    config = _config(meta)
    return config if isinstance(config, str) else json.dumps(config, indent=2) if config else ""


def data_facts(rows):
    """(name, value) pairs of the rows of one trace."""
    used, texts = int((rows["status"] == "ok").sum()), sorted(rows["prompt"].unique())
    return [
        ("model", ", ".join(sorted(rows["model"].unique())) or "not recorded"),
        ("trace", rows["trace_id"].iloc[0]),
        ("name of the text" if len(texts) == 1 else "names of the texts", _listed(texts)),
        ("layers", _listed(sorted(rows["layer"].unique()))),
        ("heads", f"{len(rows.drop_duplicates(UNIT))} (prompt, layer, kv head) units"),
        ("tokens", f"{_span(rows['n_tokens'])}, {_span(rows['n_prefill'])} of them in the prompt"),
        ("queries scored per head", _span(rows["n_queries"])),
        ("cells", f"{len(rows)}, {len(rows) - used} of them without a result"),
    ]


def data_text(rows):
    """The replayed data in a phrase: heads, layers, texts, models."""
    heads, layers = len(rows.drop_duplicates(UNIT)), rows["layer"].nunique()
    # Names without the owner or package before the last slash; the provenance shows them in full.
    models = sorted({name.rsplit("/", 1)[-1] for name in rows["model"] if name}) or ["unnamed model"]
    texts = len(rows.drop_duplicates(["trace_id", "prompt"]))
    return (
        f"{count(heads, 'kv head')} of {count(layers, 'layer')}, {count(texts, 'text')}, {', '.join(models)}"
    )


def compared_facts(frame, methods):
    """`data_text` and the decode rows of the compared `methods`; of all methods if none is named."""
    rows = frame[frame["method"].isin(methods)] if methods else frame
    return f"{data_text(rows)}, {_span(rows['n_queries'])} decode rows each"


def meta_facts(meta):
    """(name, value) pairs of results.meta.json, without those that the page shows elsewhere."""
    return [
        (key.replace("_", " "), _flat(value)) for key, value in meta.items() if key not in SHOWN_ELSEWHERE
    ]


def column_rows(meta):
    """(column, unit, meaning) of the table's columns, from results.meta.json."""
    said = meta.get("columns")
    facts = said.items() if isinstance(said, dict) else ()
    return [
        (name, each.get("unit", ""), each.get("help", "")) for name, each in facts if isinstance(each, dict)
    ]


def own_facts():
    """(name, value) pairs about the program that made the statistics and figures."""
    versions = {"kvanalysis": __version__, "Python": platform.python_version()}
    versions |= {tool.__name__: tool.__version__ for tool in (np, pd, matplotlib)}
    return [
        (
            "statistics",
            f"{LEVEL:.0%} Student intervals over the layers of each text, at least {FEWEST_BLOCKS}",
        ),
        ("analysed with", _flat(versions)),
    ]


def _config(meta):
    return next((meta[key] for key in CONFIG_KEYS if meta.get(key)), None)


def _flat(value):
    if isinstance(value, dict):
        return " · ".join(f"{key} {_flat(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return _listed([_flat(inner) for inner in value])
    return value if isinstance(value, str) else json.dumps(value)


def _listed(values):
    more = f" … ({len(values)} in all)" if len(values) > LISTED else ""
    return ", ".join(str(value) for value in values[:LISTED]) + more


def _span(column):
    low, high = column.min(), column.max()
    if pd.isna(low):
        return "not recorded"
    return str(low) if low == high else f"{low} to {high}"
