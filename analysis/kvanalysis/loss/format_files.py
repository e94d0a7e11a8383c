"""A choice of row formats as files and as a table: for `row_format: file:PATH`, and to read."""

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

from ..stats.format import ABSENT, kibibytes, significant
from .budget_files import as_text, rounded, source_of
from .budgets import Allocation
from .format_choice import FormatChoice, Uniform

HEADING = ("layer", "kv_head", "row_format")
FORMATS_FILE = "formats.csv"


def formats_csv(choice: FormatChoice | Allocation) -> str:
    """A row for each head below HEADING, as the engine reads it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADING)
    for head in choice.table.itertuples():
        writer.writerow((head.layer, head.kv_head, flow_map(head.row_format)))
    return text.getvalue()


def flow_map(row_format: str | dict[str, Any]) -> str:
    """A word, or a YAML flow map: {name: int4, group: 64}. Its keys and words need no quotes, which the CSV
    file would double."""
    if isinstance(row_format, str):
        return row_format
    if set(row_format) == {"name"}:
        return row_format["name"]
    return json.dumps(_name_first(row_format)).replace('"', "")


def _name_first(value):
    if not isinstance(value, dict):
        return value
    return {key: _name_first(value[key]) for key in sorted(value, key=lambda key: (key != "name", key))}


def formats_json(choice: FormatChoice) -> str:
    """The choice with its predicted losses; docs/mixed_formats.md explains each entry."""
    heads = [
        {
            "layer": int(head.layer),
            "kv_head": int(head.kv_head),
            "row_format": head.row_format,
            "predicted_kl": rounded(head.predicted_kl),
            "bytes": int(head.bytes),
        }
        for head in choice.table.itertuples()
    ]
    whole = {
        **source_of(choice),
        "limit_bytes": int(choice.limit),
        "bytes": choice.bytes,
        "predicted_kl": rounded(choice.predicted_kl),
        "predicted_kl_least": rounded(choice.least),
        "like": _uniform(choice.like),
        "uniform": _uniform(choice.uniform),
        "heads": heads,
    }
    return as_text(whole)


def choice_cells(choices: Iterable[FormatChoice]):
    """(header, rows) for `aligned`: a row for each choice, beside the best format for all heads at its
    bytes. A cell is (text, sort key)."""
    header = ["KiB", "one format for all", "its nats", "by head", "at least", "ratio", "formats"]
    return header, [_cells(choice) for choice in choices]


def _cells(choice):
    best = choice.uniform
    named = (ABSENT, None) if best is None else (best.label.removeprefix(f"{choice.method} "), best.label)
    nats = [best.predicted_kl if best else float("nan"), choice.predicted_kl, choice.least]
    ratio = nats[1] / nats[0] if best and best.predicted_kl else float("nan")
    used = choice.table["label"].nunique()
    return [
        (kibibytes(choice.limit), choice.limit), named, *((significant(each), each) for each in nats),
        (significant(ratio), ratio), (str(used), used),
    ]  # fmt: skip


def _uniform(uniform: Uniform | None):
    if uniform is None:
        return None
    return {
        "label": uniform.label,
        "row_format": uniform.row_format,
        "bytes": uniform.bytes,
        "predicted_kl": rounded(uniform.predicted_kl),
    }
