"""Means and intervals over heads.

The unit of resampling is one (trace, prompt, layer, kv head). Rows of one unit are correlated, and so
are its seeds: the seeds of a unit are averaged first.
"""

import numpy as np

UNIT = ["trace_id", "prompt", "layer", "kv_head"]
RESAMPLES = 2000
BOOTSTRAP_SEED = 0
LEVEL = 0.95
BLOCK_VALUES = 4_000_000  # numbers drawn at a time: bounds the memory at 32 MB whatever the sweep's size


def by_trace(frame):
    """(suffix of file names, rows) of every trace; the suffix is empty if there is only one."""
    several = frame["trace_id"].nunique() > 1
    for trace_id, rows in frame.groupby("trace_id", sort=True):
        yield (f"_{trace_id[:8]}" if several else ""), rows


def used_rows(rows):
    """The rows that count: finished, and with the main measure. Failed cells are never averaged away."""
    return rows[(rows["status"] == "ok") & rows["rel_err_out_mean"].notna()]


def unit_means(rows, measures, by=()):
    """Seed means: one row per unit (sorted index [*by, *UNIT]), a column per measure (NaN: no value)."""
    return rows.groupby([*by, *UNIT], sort=True)[list(measures)].mean()


def bootstrap_means(values, resamples=RESAMPLES, seed=BOOTSTRAP_SEED):
    """[resamples] means of `values` [n] drawn with replacement; the draws depend on n and seed only.

    Two methods measured on the same n units thus share their draws.
    """
    values = np.asarray(values, dtype=float)
    random = np.random.default_rng(seed)
    block = max(1, BLOCK_VALUES // len(values))
    means = np.empty(resamples)
    for first in range(0, resamples, block):
        count = min(block, resamples - first)
        means[first : first + count] = values[random.integers(0, len(values), (count, len(values)))].mean(
            axis=1
        )
    return means


def mean_interval(values, resamples=RESAMPLES, seed=BOOTSTRAP_SEED, level=LEVEL):
    """(mean, low, high) of one value per unit: percentile bootstrap. NaN bounds below two units."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return (float(values.mean()) if len(values) else np.nan), np.nan, np.nan
    tail = (1 - level) / 2
    low, high = np.quantile(bootstrap_means(values, resamples, seed), [tail, 1 - tail])
    return float(values.mean()), float(low), float(high)


def mean_intervals(values, resamples=RESAMPLES, seed=BOOTSTRAP_SEED, level=LEVEL):
    """(means, lows, highs) [n] of every column of `values` [units, n]: mean_interval for many at once.

    A draw takes whole units, so neighbouring columns stay together. NaN bounds below two units.
    """
    values = np.asarray(values, dtype=float)
    units, columns = values.shape
    if units < 2:
        return values.mean(axis=0), np.full(columns, np.nan), np.full(columns, np.nan)
    draws = np.random.default_rng(seed).integers(0, units, (resamples, units))
    weights = np.stack([np.bincount(draw, minlength=units) for draw in draws]) / units
    tail = (1 - level) / 2
    low, high = np.quantile(weights @ values, [tail, 1 - tail], axis=0)
    return values.mean(axis=0), low, high


def paired_difference(first, second, **bootstrap):
    """(mean, low, high) of second - first over the units that both have; two indexed series."""
    difference = (second - first).dropna()
    return mean_interval(difference.to_numpy(), **bootstrap)
