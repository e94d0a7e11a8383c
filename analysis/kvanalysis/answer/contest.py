"""Errors or predicted losses of methods, and the difference of any two: over layers, or in predicted nats."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import norm

from ..stats.intervals import BLOCK, LEVEL, block_errors, mean_interval, size_interval, two_sided_p
from ..stats.paired import compare_units

# The root mean square of ln(measured ratio / predicted ratio) of two methods at one text and budget, over
# 7,616 pairs on four models (docs/ranking.md). It is less than √2 times the scatter of one prediction
# (METHODS_APART), because effects of a text that all methods share cancel in the ratio.
RATIO_APART = 0.40


@dataclass(frozen=True)
class Pair:
    """Two methods: `difference` of their means, first minus second, and `ratio` of first to second with its
    95 % interval (NaN: too few layers, or a value that is not positive). `p`: the two-sided probability of
    such a ratio if they were equal."""

    difference: float
    ratio: float
    low: float
    high: float
    p: float

    @property
    def p_worse(self) -> float:
        """One-sided: the probability of a ratio (or a difference) at least as large if the first method were
        not worse."""
        larger = self.ratio > 1 if np.isfinite(self.ratio) else self.difference > 0
        return self.p / 2 if larger else 1 - self.p / 2

    def turned(self) -> "Pair":
        """The second method beside the first."""
        return Pair(-self.difference, 1 / self.ratio, 1 / self.high, 1 / self.low, self.p)


@dataclass(frozen=True)
class Contest:
    """What is ranked: `losses` {label: (value, low, high)}, the `pairs` of labels, and
    `layers_more` {label: number of layers of texts in which it is worse than the first}, empty by nats."""

    losses: dict[str, tuple[float, float, float]]
    pairs: dict[tuple[str, str], Pair]
    layers_more: dict[str, int]

    @property
    def ranked(self) -> list[str]:
        return sorted(self.losses, key=lambda label: (self.losses[label][0], label))

    def pair(self, first: str, second: str) -> Pair | None:
        """The two methods in this order, if they were compared."""
        if (first, second) in self.pairs:
            return self.pairs[first, second]
        return self.pairs[second, first].turned() if (second, first) in self.pairs else None


def by_heads(values: dict[str, pd.Series]) -> Contest:
    """The contest by the measure of every unit, {label: its values}: paired over layers.

    Means are ranked; two methods are tested by the logarithm of the ratio of their errors, layer by layer.
    Layers differ by orders of magnitude in error, so a difference of means rests on few layers: on four
    models the test of ratios finds many more significant pairs, and fewer of them contradict the order of
    the model's own loss (docs/statistics.md).
    """
    losses = {label: size_interval(own) for label, own in values.items()}
    pairs = {
        (a, b): pair for a, b in combinations(values, 2) if (pair := _pair(values[a], values[b])) is not None
    }
    contest = Contest(losses, pairs, {})
    for label in contest.ranked:
        more = values[label].sub(values[contest.ranked[0]]).groupby(level=BLOCK).mean().gt(0).sum()
        contest.layers_more[label] = int(more)
    return contest


def _pair(first: pd.Series, second: pd.Series) -> Pair | None:
    """Two methods on the units that both have; None if they share no unit. Where an error is not positive,
    there is no ratio, and the difference is tested."""
    compared = compare_units(first, second)
    if compared is None:
        return None
    means = pd.concat([first, second], axis=1, join="inner").dropna().groupby(level=BLOCK).mean()
    if not (means > 0).all(axis=None):
        return Pair(compared.difference, np.nan, np.nan, np.nan, compared.p)
    logs = np.log(means.iloc[:, 0] / means.iloc[:, 1]).to_numpy()[:, None]
    blocks = np.arange(len(logs))
    center, low, high = (float(np.exp(end)) for end in mean_interval(logs[:, 0], blocks))
    _, errors, freedom = block_errors(logs, blocks)
    return Pair(compared.difference, center, low, high, two_sided_p(float(logs.mean()), errors[0], freedom))


def by_nats(predicted: pd.DataFrame, labels: list[str]) -> Contest:
    """The contest by the nats of `labels` in the table of `nats_at`; labels without nats are left out."""
    known = predicted.reindex(labels).dropna(subset="nats")
    losses = {row.Index: (row.nats, row.nats_low, row.nats_high) for row in known.itertuples()}
    return Contest(losses, _pairs_by_nats(known["nats"].to_dict()), {})


def _pairs_by_nats(nats: dict[str, float]) -> dict[tuple[str, str], Pair]:
    """Every two labels, the more expensive first."""
    dearest_first = sorted(nats, key=lambda label: (-nats[label], label))
    return {(a, b): _pair_by_nats(nats[a], nats[b]) for a, b in combinations(dearest_first, 2)}


def _pair_by_nats(dear: float, cheap: float) -> Pair:
    if cheap <= 0:
        return Pair(dear - cheap, np.nan, np.nan, np.nan, 1.0 if dear == cheap else 0.0)
    log_ratio = np.log(dear / cheap)
    width = norm.isf((1 - LEVEL) / 2) * RATIO_APART
    low, high = (float(np.exp(log_ratio + end)) for end in (-width, width))
    p = float(2 * norm.sf(log_ratio / RATIO_APART))
    return Pair(dear - cheap, float(np.exp(log_ratio)), low, high, p)
