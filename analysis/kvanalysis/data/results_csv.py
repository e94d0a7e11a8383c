"""Reads results.csv into a typed table: the guaranteed columns, their types, and what is refused."""

import io
import warnings

import numpy as np
import pandas as pd
from kvbase.cells import HEAD
from kvbase.files import reason
from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_string_dtype

from ..errors import ResultsError

# The contract: these columns of results.csv stay, and are read as these types. More columns may follow.
TEXT, COUNT, NUMBER, GUESSED = "text", "count", "number", "guessed"
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
TIMES = ("select_s", "attend_s")  # times of a run: no two runs have equal ones
OPTIONAL = {"given": TEXT, "budget_share": TEXT}  # tables of older versions lack them
LARGEST_COUNT = 2.0**53  # beyond it float64 cannot represent every whole number
NEVER_EMPTY = (*HEAD, "method", "status")


def read_results_csv(path):
    """One row per cell, failed cells included: counts as Int64, numbers as floats (NaN where the field is
    empty), a column outside the contract as floats if all its fields are numbers, everything else as text.

    Raises ResultsError. Source: docs/formats.md.
    """
    if not path.is_file():
        raise ResultsError(f"{path}: no such file; `kvreplay run` writes it")
    return results_table(path)


def results_table(path):
    """`read_results_csv` for an existing file or a text in memory (an io.StringIO, whose str() names it)."""
    kinds = COLUMNS | OPTIONAL
    frame = typed_table(path, "a kvreplay results file", kinds, GUESSED, NEVER_EMPTY, check_header)
    if frame.empty:
        raise ResultsError(f"{path}: has no cell yet")
    return frame


def check_header(found, path):
    """Raises ResultsError if columns of the contract are missing."""
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


def typed_table(path, what, columns, others, never_empty, check_header):
    """The table in a CSV with `columns` {name: TEXT, COUNT or NUMBER}, and further columns as `others`.

    `check_header(names, path)` may refuse the header. Raises ResultsError, which says that the file is not
    `what`, or names the first field that does not fit its column.
    """
    names = list(_read(path, what, nrows=0))
    check_header(names, path)
    kinds = {name: columns.get(name, others) for name in names}
    texts = {name: str for name, kind in kinds.items() if kind == TEXT}
    # Only numbers may be missing, so that a prompt named NA stays a text.
    missing = {name: [""] for name in names if name not in texts}
    frame = _read(path, what, dtype=texts, na_values=missing, low_memory=False)
    found = pd.DataFrame({name: _column(frame[name], kind, path, what) for name, kind in kinds.items()})
    for name in never_empty:
        empty = found[name].isna() | (found[name] == "" if kinds[name] == TEXT else False)
        if empty.any():
            raise ResultsError(f"{path}: row {row_number(empty)}: {name} is empty")
    return found


def _read(path, what, **how):
    if isinstance(path, io.StringIO):
        path.seek(0)
    try:
        with warnings.catch_warnings():
            # pandas only warns when a row is longer than the header, and then drops fields.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(path, keep_default_na=False, index_col=False, **how)
    except (OSError, ValueError, pd.errors.ParserError, pd.errors.ParserWarning) as problem:
        raise ResultsError(f"{path}: not {what}: {reason(problem)}") from problem


def _column(column, kind, path, what):
    if kind == TEXT:  # a row that is too short ends in missing fields
        return column.fillna("")
    numeric = column.empty or (is_numeric_dtype(column) and not is_bool_dtype(column))
    if kind == GUESSED and not numeric:
        return column.fillna("") if is_string_dtype(column) else _raw_texts(path, what, column.name)
    if kind == GUESSED:
        return column.astype(float)
    if not numeric or _wrong(column.to_numpy(dtype=float), kind).any():
        _refuse_first_invalid(_raw_texts(path, what, column.name), kind, path)
    return column.astype("Int64" if kind == COUNT else float)


def _raw_texts(path, what, name):
    return _read(path, what, usecols=[name], dtype=str)[name].fillna("")


def _wrong(values, kind):
    """[rows] whether a number is infinite or not a count; a missing number is neither."""
    if kind == NUMBER:
        return np.isinf(values)
    return (values != np.floor(values)) & ~np.isnan(values) | (np.abs(values) > LARGEST_COUNT)


def _refuse_first_invalid(texts, kind, path):
    values = pd.to_numeric(texts.where(texts != "", "0"), errors="coerce").to_numpy(dtype=float)
    wrong = np.isnan(values) | _wrong(values, kind)
    wanted = "a whole number" if kind == COUNT else "a finite number"
    at = f"{path}: row {row_number(wrong)}, column {texts.name}"
    raise ResultsError(f"{at}: {texts.iloc[int(np.argmax(wrong))]!r} is not {wanted}")
