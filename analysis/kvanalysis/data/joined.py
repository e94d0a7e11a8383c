"""Tables of several runs as one: a cell that is in two of them counts once."""

import numpy as np
import pandas as pd
from kvbase import cells
from kvbase.cells import in_table

from ..errors import ResultsError
from .results_csv import TIMES

CELL = in_table(cells.CELL)
# Budgets replayed together share sums, and instruction sets and devices round differently: two computations
# of one number in single precision agree only to these tolerances.
RELATIVE, ABSOLUTE = 1e-4, 1e-6
SHOWN = [name for name in CELL if name not in ("trace_id", "given_json")]  # describes a cell in a message


def joined(tables):
    """The rows of all (place, typed table), in order. If cells have equal numbers (to single precision), the
    first row is kept; if one has failed and the other has finished, the finished row is kept.

    Raises ResultsError, which names both places, if two finished rows of a cell differ in any number except
    the times of the run.
    """
    if len(tables) == 1:
        return tables[0][1]
    frames = _unified_types([frame for _, frame in tables])
    whole = pd.concat(frames, ignore_index=True)
    first = _first_rows(whole)
    again = np.flatnonzero((first != np.arange(len(whole))) & (whole["status"] == "ok").to_numpy())
    source = np.repeat(np.arange(len(tables)), [len(frame) for frame in frames])
    _refuse_other_numbers(whole, again, first[again], [tables[i][0] for i in source[again]],
                          [tables[i][0] for i in source[first[again]]])  # fmt: skip
    return whole[first == np.arange(len(whole))].reset_index(drop=True)


def _unified_types(frames):
    """A column that is text in one table becomes text in all; a column that a table lacks is empty there."""
    names = list(dict.fromkeys(name for frame in frames for name in frame))
    texts = [name for name in names if any(_is_text(frame, name) for frame in frames)]
    return [frame.assign(**{name: _as_text(frame, name) for name in texts}) for frame in frames]


def _is_text(frame, name):
    return name in frame and pd.api.types.is_string_dtype(frame[name].dtype)


def _as_text(frame, name):
    if name not in frame:
        return ""
    return frame[name] if _is_text(frame, name) else frame[name].map(_word)


def _word(value):
    return "" if pd.isna(value) else f"{value:g}"


def _first_rows(whole):
    """[rows] the row that represents each row's cell: its first finished row, else its first."""
    cells = whole.groupby(CELL, sort=False, dropna=False).ngroup()
    order = np.arange(len(whole)) + len(whole) * (whole["status"] != "ok").to_numpy()
    return pd.Series(order).groupby(cells).transform("min").to_numpy() % len(whole)


def _refuse_other_numbers(whole, rows, others, places, other_places):
    for name in whole.select_dtypes("number"):
        differs = _differs(whole[name], rows, others)
        if name not in TIMES and differs.any():
            i = int(np.argmax(differs))
            cell = ", ".join(f"{key} {whole[key].iloc[rows[i]]}" for key in SHOWN)
            one, two = whole[name].iloc[others[i]], whole[name].iloc[rows[i]]
            raise ResultsError(
                f"{other_places[i]} and {places[i]} hold different numbers of one cell ({cell}): {name} is"
                f" {one} and {two}; load one of them"
            )


def _differs(column, rows, others):
    values = column.astype(float).to_numpy()
    if pd.api.types.is_integer_dtype(column.dtype):
        return ~((values[rows] == values[others]) | (np.isnan(values[rows]) & np.isnan(values[others])))
    return ~np.isclose(values[rows], values[others], RELATIVE, ABSOLUTE, equal_nan=True)
