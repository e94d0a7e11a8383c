"""Means over heads and their intervals.

A unit is one (trace, prompt, layer, kv head). Seeds of a unit are averaged first. Heads of one layer see the
same hidden states and have similar errors, so evidence is counted in blocks: a block is one (trace, prompt,
layer) with its heads. The interval is Student's over blocks. For two equal methods it excludes zero in at
most 6 % of trials, for any number of heads, shape of tails and dependence within a layer. Percentiles of a
bootstrap over heads and Student's interval over heads do not achieve this (docs/statistics.md).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from kvbase.cells import HEAD
from scipy.special import stdtr, stdtrit

UNIT = list(HEAD)
BLOCK = UNIT[:-1]
LEVEL = 0.95
# Fewer blocks give no interval: five agree in sign by chance in 2 of 32 trials, four in 2 of 16.
FEWEST_BLOCKS = 5


def by_trace(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(prefix of its files' names, rows) of every trace; the prefix is empty if there is only one trace."""
    several = frame["trace_id"].nunique() > 1
    for trace_id, rows in frame.groupby("trace_id", sort=True):
        yield (f"{trace_id[:8]}_" if several else ""), rows


def used_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Finished rows that have the main measure. Failed cells are never averaged away."""
    return rows[(rows["status"] == "ok") & rows["rel_err_out_mean"].notna()]


def unit_means(rows: pd.DataFrame, measures, by=()) -> pd.DataFrame:
    """Seed means: one row per unit (sorted index [*by, *UNIT]), a column per measure (NaN: no value)."""
    return rows.groupby([*by, *UNIT], sort=True)[list(measures)].mean()


def head_points(rows: pd.DataFrame, measure: str, by: list[str]) -> pd.DataFrame:
    """Means over heads, with intervals: columns [*by, y, low, high, n_units]. Seeds are averaged first."""
    units = unit_means(used_rows(rows), [measure], by)[measure].dropna()
    table = []
    for key, values in units.groupby(level=list(range(len(by))), sort=True):
        mean, low, high = size_interval(values.droplevel(list(range(len(by)))))
        place = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True))
        table.append(place | {"y": mean, "low": low, "high": high, "n_units": len(values)})
    return pd.DataFrame(table, columns=[*by, "y", "low", "high", "n_units"])


def over_units(rows: pd.DataFrame, column: str) -> pd.Series:
    """A column with one value per unit, as a Series over units: its index has those columns of UNIT that
    exist."""
    return rows.set_index([name for name in UNIT if name in rows])[column]


def mean_interval(values, blocks=None, level=LEVEL) -> tuple[float, float, float]:
    """(mean, low, high) of one value per unit; the bounds are NaN below FEWEST_BLOCKS blocks.

    `blocks` [units]: equal numbers where values belong together. By default the blocks of a Series over units
    come from its index, and every other value is a block of its own; a caller that relies on the latter says
    why.
    """
    if blocks is None and isinstance(values, pd.Series):
        blocks = blocks_of(values.index)
    values = np.asarray(values, dtype=float)
    if not len(values):
        return np.nan, np.nan, np.nan
    found = mean_intervals(values[:, None], blocks, level)
    return tuple(float(each[0]) for each in found)


def size_interval(values, blocks=None) -> tuple[float, float, float]:
    """mean_interval of errors, bytes and the like: if no value is negative, no end is."""
    mean, low, high = mean_interval(values, blocks)
    return mean, (max(low, 0.0) if np.all(np.asarray(values) >= 0) else low), high


def mean_intervals(values, blocks=None, level=LEVEL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(means, lows, highs) [n] of every column of `values` [units, n]: mean_interval for many columns at
    once."""
    values = np.asarray(values, dtype=float)
    means, errors, freedom = block_errors(values, blocks)
    reach = stdtrit(freedom, (1 + level) / 2) * errors
    return means, means - reach, means + reach


def block_errors(values: np.ndarray, blocks=None) -> tuple[np.ndarray, np.ndarray, float]:
    """(means [n], their standard errors [n], degrees of freedom) of `values` [units, n], NaN below
    FEWEST_BLOCKS.

    The mean is over all units. Its error follows from the sums of deviations of whole blocks. With blocks of
    one size it equals the error of the mean of block means, with one degree of freedom less than blocks.
    Unequal blocks count as the number of equal blocks with as much information: (Σn²)²/Σn⁴ - 1 degrees, n the
    sizes.
    """
    means = values.mean(axis=0)
    own = np.arange(len(values)) if blocks is None else np.unique(np.asarray(blocks), return_inverse=True)[1]
    sizes = np.bincount(own).astype(float)
    count = len(sizes)
    if count < FEWEST_BLOCKS:
        return means, np.full(len(means), np.nan), np.nan
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, own, values - means)
    errors = np.sqrt(count / (count - 1) * (sums**2).sum(axis=0)) / len(values)
    return means, errors, (sizes**2).sum() ** 2 / (sizes**4).sum() - 1


def blocks_of(index: pd.Index) -> np.ndarray:
    """[units] number of the block of each unit in an index with levels of UNIT; every unit is its own block
    if the index lacks all levels of BLOCK."""
    places = {name: place for place, name in enumerate(index.names) if name in BLOCK}
    if not places:
        return np.arange(len(index))
    if not isinstance(index, pd.MultiIndex):
        return index.factorize()[0]
    # Combines the levels' codes into one number, because a page calls this thousands of times.
    at = [(index.codes[place], len(index.levels[place])) for place in places.values()]
    codes, sizes = zip(*at, strict=True)
    return np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)[1]


def two_sided_p(mean: float, error: float, freedom: float) -> float:
    """Probability of a mean at least as far from zero if the true mean were zero; NaN without an error, 1
    if nothing differs."""
    if not np.isfinite(error):
        return float("nan")
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(mean) / error))


def holm(p_values) -> np.ndarray:
    """Holm's step-down adjustment (Scand. J. Statist. 1979): among the values that it leaves below 0.05, one
    or more is false with a probability of at most 5 %. NaN stays NaN and is not counted."""
    p_values = np.asarray(p_values, dtype=float)
    adjusted = np.full(len(p_values), np.nan)
    known = np.flatnonzero(np.isfinite(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1)
    return adjusted


def paired_difference(first: pd.Series, second: pd.Series) -> tuple[float, float, float]:
    """(mean, low, high) of second - first over the units that both have; two series over units."""
    return mean_interval((second - first).dropna())
