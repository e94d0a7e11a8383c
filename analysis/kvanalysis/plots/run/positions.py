"""Error along the scored rows, averaged over heads, from a run's curves or from its quarters of rows."""

from functools import reduce
from pathlib import Path

import numpy as np
import pandas as pd

from ...data.arrays import Arrays
from ...errors import ResultsError
from ...stats.families import has_values
from ...stats.intervals import UNIT, blocks_of, mean_intervals, unit_means

QUARTERS = [f"rel_err_quarter_{part}" for part in (1, 2, 3, 4)]
SHARE = 16  # the rolling window is 1/SHARE of the rows
POINTS = 80  # largest number of points along a curve


def along_rows(rows, saved=()):
    """(table, a phrase on its source); the table is empty if the run has neither curves nor quarters.

    Columns: label, position, rel_err_mean, rel_err_low, rel_err_high, n_units. `position` is the token's
    position, or the quarter (1 to 4) of the scored rows. `saved`: mappings from a cell's key to its curves,
    in addition to the run's folders.
    """
    table, window = _rolling(rows, saved)
    if len(table):
        return table, f"Rolling mean over {window} rows (centred)."
    if not has_values(rows, *QUARTERS):
        return pd.DataFrame(), ""
    return _quarters(rows), "Means over four equal parts of the scored rows (the run saved no curves)."


def by_quarters(table):
    return table["position"].max() <= len(QUARTERS)


def _rolling(rows, saved):
    curves = _curves(rows, saved)
    shared = reduce(np.intersect1d, (at for at, _, _ in curves)) if curves else np.array([])
    if not len(shared):
        return pd.DataFrame(), 0
    window = max(1, len(shared) // SHARE)
    kept = np.unique(np.linspace(0, len(shared) - 1, POINTS).round().astype(int))
    by_label = {}
    for at, error, cell in curves:
        unit = by_label.setdefault(cell["label"], {}).setdefault(tuple(cell[name] for name in UNIT), [])
        unit.append(error[np.searchsorted(at, shared)])
    parts = []
    for label, units in by_label.items():
        smooth = np.stack([_smooth(np.mean(seeds, axis=0), window)[kept] for seeds in units.values()])
        layers = pd.MultiIndex.from_tuples(units, names=UNIT)
        parts.append(_part(label, shared[kept], smooth, blocks_of(layers)))
    return pd.concat(parts, ignore_index=True), window


def _curves(rows, saved):
    """(token positions, mean error over the group's heads, cell) of every cell that has a curve."""
    sources = list(saved)
    for folder in rows.attrs.get("folders", ()):
        try:
            sources.append(Arrays(Path(folder) / "curves.h5"))
        except ResultsError:
            continue
    found = []
    for _, cell in rows.iterrows():
        curve = _first(sources, cell["key"])
        if curve is not None:
            # A negative error marks a row without an exact output to compare with.
            errors = np.where(curve["rel_err"] < 0, np.nan, curve["rel_err"])
            found.append((curve["rows"], pd.DataFrame(errors).mean().to_numpy(), cell))
    return found


def _first(sources, key):
    for source in sources:
        try:
            return source[key]
        except (KeyError, ResultsError):
            continue
    return None


def _smooth(error, window):
    """The rolling mean, with shorter windows at both ends, so that no row is lost."""
    return pd.Series(error).rolling(window, center=True, min_periods=1).mean().to_numpy()


def _quarters(rows):
    units = unit_means(rows, QUARTERS, ["label"]).dropna()
    return pd.concat(
        [
            _part(label, np.arange(1, 5), own.to_numpy(), blocks_of(own.index))
            for label, own in units.groupby(level="label")
        ],
        ignore_index=True,
    )


def _part(label, position, values, blocks):
    mean, low, high = mean_intervals(values, blocks)
    low = np.maximum(low, 0)  # no error is negative
    return pd.DataFrame(
        {
            "label": label,
            "position": position,
            "rel_err_mean": mean,
            "rel_err_low": low,
            "rel_err_high": high,
            "n_units": len(values),
        }
    )
