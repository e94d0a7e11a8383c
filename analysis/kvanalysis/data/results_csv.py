"""Reads results.csv into a typed table: the columns that stay, their types, and what is refused."""

import warnings

import numpy as np
import pandas as pd

from ..errors import ResultsError

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
TIMES = ("select_s", "attend_s")  # of a run: no two are alike
NEVER_GUESSED = {*COLUMNS, "given"}  # whether the fields are numbers or not: what they are is known
NEVER_EMPTY = ("trace_id", "prompt", "layer", "kv_head", "method", "status")


def read_results_csv(path):
    """One row per cell, failed cells included: counts as Int64, numbers as floats (NaN where the field is
    empty), a column beyond the contract as floats if all its fields are numbers, everything else as text.

    Raises ResultsError. Source: docs/formats.md.
    """
    frame = typed(_read_text(path), COLUMNS, NEVER_EMPTY, path)
    return frame.assign(**{name: _guessed(frame[name]) for name in frame if name not in NEVER_GUESSED})


def check_header(found, path):
    """Raises ResultsError where columns of the contract are missing."""
    missing = [name for name in COLUMNS if name not in found]
    if 2 * len(missing) > len(COLUMNS):
        raise ResultsError(
            f"{path}: not a kvreplay results file ({len(missing)} of {len(COLUMNS)} columns missing)"
        )
    if missing:
        raise ResultsError(f"{path}: missing columns: {', '.join(missing)}")


def row_number(mask):
    """1-based number of the first marked data row; the header is not counted."""
    return int(np.argmax(np.asarray(mask))) + 1


def one_line(problem):
    return " ".join(str(problem).split())


def text_table(path, kind, check):
    """All fields as text, so that a prompt called 007 or NA stays what it is; `check(columns, path)` may
    refuse the header. Raises ResultsError, which says that the file is not `kind`."""
    try:
        with warnings.catch_warnings():
            # pandas only warns when a row is longer than the header, and then drops fields.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    except (OSError, ValueError, pd.errors.ParserError, pd.errors.ParserWarning) as problem:
        raise ResultsError(f"{path}: not {kind}: {one_line(problem)}") from problem
    check(frame.columns, path)
    # A row that is too short ends in missing fields, its status among them.
    return frame.fillna("")


def typed(frame, columns, never_empty, path):
    """The texts of `text_table` as `columns` {name: TEXT, COUNT or NUMBER} has them; raises ResultsError."""
    for name, kind in columns.items():
        if name in never_empty and (frame[name] == "").any():
            raise ResultsError(f"{path}: row {row_number(frame[name] == '')}: {name} is empty")
        if kind != TEXT:
            frame[name] = _numbers(frame[name], kind, path)
    return frame


def _read_text(path):
    if not path.is_file():
        raise ResultsError(f"{path}: no such file; `kvreplay run` writes it")
    frame = text_table(path, "a kvreplay results file", check_header)
    if frame.empty:
        raise ResultsError(f"{path}: holds no cell yet")
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
        at = f"{path}: row {row_number(bad)}, column {column.name}"
        raise ResultsError(f"{at}: {column.iloc[int(np.argmax(bad))]!r} is not {wanted}")
    if kind == NUMBER:
        return np.where(empty, np.nan, values)
    return pd.Series(values.astype("int64"), dtype="Int64").mask(empty).array


def _guessed(column):
    """A column beyond the contract: floats if every field is a number or empty, else text."""
    numbers = pd.to_numeric(column.where(column != ""), errors="coerce")
    return numbers.astype(float) if numbers.notna().equals(column != "") else column
