"""Means and intervals over heads.

The unit of resampling is one (trace, prompt, layer, kv head). Rows of one unit are correlated, and so
are its seeds: the seeds of a unit are averaged first.
"""

from functools import lru_cache

import numpy as np
import pandas as pd

UNIT = ["trace_id", "prompt", "layer", "kv_head"]
RESAMPLES = 2000
BOOTSTRAP_SEED = 0
LEVEL = 0.95
BLOCK_VALUES = 4_000_000  # numbers drawn at a time: bounds the memory at 32 MB whatever the sweep's size


def by_trace(frame):
    """(what names of its files begin with, rows) of every trace; nothing if there is only one."""
    several = frame["trace_id"].nunique() > 1
    for trace_id, rows in frame.groupby("trace_id", sort=True):
        yield (f"{trace_id[:8]}_" if several else ""), rows


def used_rows(rows):
    """The rows that count: finished, and with the main measure. Failed cells are never averaged away."""
    return rows[(rows["status"] == "ok") & rows["rel_err_out_mean"].notna()]


def unit_means(rows, measures, by=()):
    """Seed means: one row per unit (sorted index [*by, *UNIT]), a column per measure (NaN: no value)."""
    return rows.groupby([*by, *UNIT], sort=True)[list(measures)].mean()


def head_points(rows, measure, by):
    """Means over heads, with intervals: columns [*by, y, low, high, n_units]. Seeds are averaged first."""
    units = unit_means(used_rows(rows), [measure], by)[measure].dropna()
    table = []
    for key, values in units.groupby(level=list(range(len(by))), sort=True):
        mean, low, high = mean_interval(values.to_numpy())
        place = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True))
        table.append(place | {"y": mean, "low": low, "high": high, "n_units": len(values)})
    return pd.DataFrame(table, columns=[*by, "y", "low", "high", "n_units"])


def mean_interval(values, resamples=RESAMPLES, seed=BOOTSTRAP_SEED, level=LEVEL):
    """(mean, low, high) of one value per unit: percentile bootstrap. NaN bounds below two units."""
    values = np.asarray(values, dtype=float)
    if not len(values):
        return np.nan, np.nan, np.nan
    found = mean_intervals(values[:, None], resamples, seed, level)
    return tuple(float(each[0]) for each in found)


def mean_intervals(values, resamples=RESAMPLES, seed=BOOTSTRAP_SEED, level=LEVEL):
    """(means, lows, highs) [n] of every column of `values` [units, n]: mean_interval for many at once.

    A draw takes whole units, so neighbouring columns stay together. What is drawn depends on the number of
    units and the seed alone: two methods measured on the same units share their draws.
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        nothing = np.full(values.shape[1], np.nan)
        return values.mean(axis=0), nothing, nothing
    tail = (1 - level) / 2
    low, high = np.quantile(bootstrap_means(values, resamples, seed), [tail, 1 - tail], axis=0)
    return values.mean(axis=0), low, high


def bootstrap_means(values, resamples=RESAMPLES, seed=BOOTSTRAP_SEED):
    """[resamples, ...] means of `values` [units, ...] drawn with replacement."""
    values = np.asarray(values, dtype=float)
    if len(values) * resamples <= BLOCK_VALUES:
        return _drawn(len(values), resamples, seed) @ values / len(values)
    random, block = np.random.default_rng(seed), max(1, BLOCK_VALUES // values.size)
    counts = [min(block, resamples - first) for first in range(0, resamples, block)]
    drawn = (random.integers(0, len(values), (count, len(values))) for count in counts)
    return np.concatenate([values[draws].mean(axis=1) for draws in drawn])


@lru_cache(maxsize=4)
def _drawn(units, resamples, seed):
    """[resamples, units] how often each unit is drawn: the same for all that is compared."""
    draws = np.random.default_rng(seed).integers(0, units, (resamples, units))
    return np.stack([np.bincount(draw, minlength=units) for draw in draws]).astype(float)


def paired_difference(first, second, **bootstrap):
    """(mean, low, high) of second - first over the units that both have; two indexed series."""
    difference = (second - first).dropna()
    return mean_interval(difference.to_numpy(), **bootstrap)
