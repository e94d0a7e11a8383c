"""Rank correlations with ties, for many pairs of variables and many resamples of methods at once.

A resample counts how often it drew each point. Ranks within it follow from which points lie below which, so
resamples are never written out.
"""

from dataclasses import dataclass

import numpy as np

from .intervals import LEVEL

RESAMPLES = 2000
BOOTSTRAP_SEED = 0
BLOCK_VALUES = 2_000_000  # numbers in a block of resamples: limits the memory


@dataclass(frozen=True)
class Draws:
    """`counts` [r, groups]: how often each resample drew each group; `group` [n]: the group of every
    point."""

    counts: np.ndarray
    group: np.ndarray

    def of(self, points):
        """The resamples restricted to some of the points."""
        return Draws(self.counts, self.group[points])

    def blocks(self, values):
        """Parts of the resamples, with at most BLOCK_VALUES numbers each at `values` numbers per resample."""
        step = max(1, BLOCK_VALUES // max(1, values))
        return [Draws(self.counts[i : i + step], self.group) for i in range(0, len(self.counts), step)]


def spearmans(xs, ys):
    """[a, b] Pearson's correlations of the midranks of every row of `xs` [a, n] with those of every row of
    `ys` [b, n]; NaN if a row is constant."""
    n = np.shape(xs)[1]
    return drawn_spearmans(xs, ys, Draws(np.ones((1, 1)), np.zeros(n, dtype=int)))[..., 0]


def kendalls(xs, ys):
    """[a, b] Kendall's tau-b: pairs in order minus pairs out of order, over the geometric mean of the pairs
    that x does not tie and the pairs that y does not tie. NaN if a row is constant."""
    a, b = (np.sign(_pairs(np.subtract, values)).reshape(len(values), -1) for values in (xs, ys))
    return _ratio(a @ b.T, (a * a).sum(axis=1)[:, None], (b * b).sum(axis=1))


def drawn_spearmans(xs, ys, draws):
    """[a, b, r] `spearmans` in each of r resamples."""
    below = [_below(values, draws) for values in (xs, ys)]
    numbers = sum(each.shape[1] * each.shape[2] for each in below)
    return np.concatenate([_of_block(below, block) for block in draws.blocks(numbers)], axis=-1)


def _of_block(below, draws):
    weights = draws.counts[:, draws.group]
    x, y = (np.tensordot(draws.counts, each, 1) - weights.sum(axis=1)[:, None, None] / 2 for each in below)
    weighted = y * weights[:, None]
    shared = x @ weighted.swapaxes(1, 2)
    of_x, of_y = np.einsum("rn,rin,rin->ri", weights, x, x), np.einsum("rin,rin->ri", weighted, y)
    return np.moveaxis(_ratio(shared, of_x[:, :, None], of_y[:, None]), 0, -1)


def _below(values, draws):
    """[groups, i, n] the number of points of a group below each point of row i; equal points count half.

    Weighted by how often groups are drawn, minus half the number of draws, this is the midrank of the point
    minus the mean rank.
    """
    pairs = _pairs(np.less, values) + 0.5 * _pairs(np.equal, values)
    found = np.zeros((draws.counts.shape[1], len(pairs), pairs.shape[2]))
    np.add.at(found, draws.group, pairs.swapaxes(0, 1))
    return found


def _pairs(compare, values):
    """[i, n, n] `compare` for every two points of each row."""
    values = np.asarray(values, dtype=float)
    return compare(values[:, :, None], values[:, None, :])


def _ratio(shared, of_x, of_y):
    """NaN if x or y is constant: its deviations and their products are then exactly zero."""
    with np.errstate(invalid="ignore"):
        return shared / np.sqrt(of_x * of_y)


FEWEST_METHODS = 5  # with fewer methods, percentiles of resampled methods mean little


def method_draws(methods, resamples=RESAMPLES, seed=BOOTSTRAP_SEED):
    """Draws of n instances when methods are drawn with replacement; None below FEWEST_METHODS.

    `methods` [n]: the method of each instance. A method's budgets, variants and prompts are no independent
    evidence on whether a measure predicts the loss, so they are drawn together. The draws depend only on the
    number of methods and the seed: all measures share them.
    """
    names, own = np.unique(np.asarray(methods, dtype=str), return_inverse=True)
    if len(names) < FEWEST_METHODS:
        return None
    drawn = np.random.default_rng(seed).integers(0, len(names), (resamples, len(names)))
    counts = np.stack([np.bincount(draw, minlength=len(names)) for draw in drawn])
    return Draws(counts.astype(float), own)


def percentile_intervals(values, level=LEVEL):
    """(low, high) [...] over the last axis; resamples without a value (points of one rank) are left out."""
    tail = (1 - level) / 2
    ends = [tail, 1 - tail]
    found = np.full((2, *np.shape(values)[:-1]), np.nan)
    some = np.isfinite(values).any(axis=-1)
    whole = some & ~np.isnan(values).any(axis=-1)
    found[:, whole] = np.quantile(values[whole], ends, axis=-1)
    # numpy handles rows with NaN one by one.
    found[:, some & ~whole] = np.nanquantile(values[some & ~whole], ends, axis=-1)
    return found
