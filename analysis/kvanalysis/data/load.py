"""Reads OUT/results.csv and OUT/results.meta.json into one typed table."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import ResultsError
from .labels import add_labels

# The contract: every column of results.csv and how it is read. More columns may follow; these stay.
TEXT, COUNT, NUMBER = "text", "count", "number"
COLUMNS = {
    **dict.fromkeys(("key", "trace_id", "model", "prompt"), TEXT),
    **dict.fromkeys(("layer", "kv_head"), COUNT),
    **dict.fromkeys(("method", "params"), TEXT),
    **dict.fromkeys(("budget_tokens", "seed", "n_prefill", "n_tokens", "n_queries"), COUNT),
    **dict.fromkeys(("rel_err_out_mean", "rel_err_out_p50", "rel_err_out_p95", "rel_err_out_max"), NUMBER),
    **dict.fromkeys(("rel_err_fro", "cosine_mean"), NUMBER),
    **dict.fromkeys(("eps_spectral_mean", "eps_spectral_max"), NUMBER),
    **dict.fromkeys(("eps_frobenius_mean", "eps_frobenius_max"), NUMBER),
    **dict.fromkeys(("partition_err_mean", "partition_err_max"), NUMBER),
    **dict.fromkeys(("kept_mass_mean", "mass_recall", "index_recall"), NUMBER),
    **dict.fromkeys(("peak_kept_tokens", "mean_kept_tokens", "peak_attended_tokens"), NUMBER),
    **dict.fromkeys(("peak_bytes", "aux_bytes", "total_bytes", "full_bytes"), NUMBER),
    **dict.fromkeys(("n_evictions", "bound_log10_tokens", "bound_holds", "select_s", "attend_s"), NUMBER),
    **dict.fromkeys(("status", "error"), TEXT),
}
NEVER_GUESSED = {*COLUMNS, "given"}  # whether the fields are numbers or not: what they are is known
NEVER_EMPTY = ("trace_id", "prompt", "layer", "kv_head", "method", "status")
CELL = ["trace_id", "prompt", "layer", "kv_head", "method", "params_json", "budget_tokens", "seed"]


class _Meta(dict):
    """results.meta.json, which nobody changes: pandas copies `attrs` deeply with every selection."""

    def __deepcopy__(self, _):
        return self


def load(out_dir):
    """One row per cell of the run in `out_dir`, failed cells included.

    Counts are nullable integers, measures are floats (NaN where the field is empty), a column beyond the
    contract is floats if all its fields are numbers. `params` and `given` are dicts, `params_json` is
    canonical text, `label` the legend entry, `oracle` whether the method sees what a cache could not.
    `frame.attrs["meta"]` holds results.meta.json, {} without that file; `frame.attrs["folders"]` says where
    the arrays of the run are.
    Raises ResultsError. Source: docs/formats.md.
    """
    path = Path(out_dir) / "results.csv"
    frame = _typed(_read_text(path), path)
    frame = frame.assign(**{name: _guessed(frame[name]) for name in frame if name not in NEVER_GUESSED})
    frame["params_json"] = frame["params"]
    given = frame["given"] if "given" in frame else frame["params"]
    frame = frame.assign(params=_parse_json(frame["params"], path), given=_parse_json(given, path))
    _refuse_repeated_cells(frame, path)
    frame = add_labels(frame)
    frame.attrs["meta"] = _Meta(load_meta(out_dir))
    frame.attrs["folders"] = [str(out_dir)]
    return frame


def load_meta(out_dir):
    """The JSON object of results.meta.json; {} if there is no such file. Raises ResultsError."""
    path = Path(out_dir) / "results.meta.json"
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise ResultsError(f"{path}: cannot be read as JSON: {_one_line(problem)}") from problem
    if not isinstance(meta, dict):
        raise ResultsError(f"{path}: expected a JSON object, found {type(meta).__name__}")
    return meta


def _read_text(path):
    """All fields as text, so that a prompt called 007 or NA stays what it is."""
    if not path.is_file():
        raise ResultsError(f"{path}: no such file; `kvreplay run` writes it")
    try:
        with warnings.catch_warnings():
            # pandas only warns when a row is longer than the header, and then drops fields.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    except (OSError, ValueError, pd.errors.ParserError, pd.errors.ParserWarning) as problem:
        raise ResultsError(f"{path}: not a kvreplay results file: {_one_line(problem)}") from problem
    _check_header(frame.columns, path)
    if frame.empty:
        raise ResultsError(f"{path}: holds no cell yet")
    # A row that is too short ends in missing fields, its status among them.
    return frame.fillna("")


def _check_header(found, path):
    missing = [name for name in COLUMNS if name not in found]
    if 2 * len(missing) > len(COLUMNS):
        raise ResultsError(
            f"{path}: not a kvreplay results file ({len(missing)} of {len(COLUMNS)} columns missing)"
        )
    if missing:
        raise ResultsError(f"{path}: missing columns: {', '.join(missing)}")


def _typed(frame, path):
    for name, kind in COLUMNS.items():
        if name in NEVER_EMPTY and (frame[name] == "").any():
            raise ResultsError(f"{path}: row {_row_number(frame[name] == '')}: {name} is empty")
        if kind != TEXT:
            frame[name] = _numbers(frame[name], kind, path)
    return frame


def _numbers(column, kind, path):
    """Empty fields become missing values; anything else must be a finite number, whole for a count."""
    empty = (column == "").to_numpy()
    values = pd.to_numeric(column.where(~empty, "0"), errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(values)
    if kind == COUNT:
        bad |= values != np.floor(values)
    if bad.any():
        wanted = "a whole number" if kind == COUNT else "a finite number"
        at = f"{path}: row {_row_number(bad)}, column {column.name}"
        raise ResultsError(f"{at}: {column.iloc[int(np.argmax(bad))]!r} is not {wanted}")
    if kind == NUMBER:
        return np.where(empty, np.nan, values)
    return pd.Series(values.astype("int64"), dtype="Int64").mask(empty).array


def _guessed(column):
    """A column beyond the contract: floats if every field is a number or empty, else text."""
    numbers = pd.to_numeric(column.where(column != ""), errors="coerce")
    return numbers.astype(float) if numbers.notna().equals(column != "") else column


def _parse_json(texts, path):
    """One dict per row; equal texts share one dict. An empty field means no parameters."""
    parsed = {}
    for text in texts.unique():
        try:
            parsed[text] = json.loads(text) if text else {}
        except ValueError as problem:
            raise ResultsError(f"{path}: {texts.name} is not JSON: {text[:80]!r}") from problem
        if not isinstance(parsed[text], dict):
            raise ResultsError(f"{path}: {texts.name} is not a JSON object: {text[:80]!r}")
    return pd.Series([parsed[text] for text in texts], index=texts.index, dtype=object)


def _refuse_repeated_cells(frame, path):
    """A cell that stands twice would count twice in every mean."""
    again = frame.duplicated(CELL)
    if again.any():
        raise ResultsError(f"{path}: row {_row_number(again)} repeats a cell that stands above it")


def _row_number(mask):
    """1-based number of the first marked data row; the header is not counted."""
    return int(np.argmax(np.asarray(mask))) + 1


def _one_line(problem):
    return " ".join(str(problem).split())
