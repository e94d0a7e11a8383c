"""Losses of methods, and how far any two of them lie apart: over layers, or by predicted nats."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import norm

from ..stats.intervals import BLOCK, LEVEL, mean_interval
from ..stats.paired import Comparison, compare_units

# The root mean square of ln(measured ratio / predicted ratio) of two methods of one text and budget, 7,616
# pairs on four models (docs/ranking.md). It is less than √2 times that of one prediction (METHODS_APART):
# what a text does to all methods alike is no difference between them.
RATIO_APART = 0.40


@dataclass(frozen=True)
class Difference:
    """The first cost minus the second, in nats a token, with its 95 % interval (NaN beside a cost of zero)
    and `p`, the two-sided probability if they were equal."""

    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Contest:
    """What is ranked: `losses` {label: (loss, low, high)}, the differences of `pairs` of labels, and
    `layers_more` {label: in how many layers of texts it loses more than the first}, empty by nats."""

    losses: dict[str, tuple[float, float, float]]
    pairs: dict[tuple[str, str], Comparison | Difference]
    layers_more: dict[str, int]

    @property
    def ranked(self) -> list[str]:
        return sorted(self.losses, key=lambda label: (self.losses[label][0], label))


def by_heads(values: dict[str, pd.Series]) -> Contest:
    """By the measure of every unit, {label: its values}: paired over layers."""
    losses = {label: mean_interval(own) for label, own in values.items()}
    pairs = {
        (a, b): compared
        for a, b in combinations(values, 2)
        if (compared := compare_units(values[a], values[b])) is not None
    }
    contest = Contest(losses, pairs, {})
    for label in contest.ranked:
        more = values[label].sub(values[contest.ranked[0]]).groupby(level=BLOCK).mean().gt(0).sum()
        contest.layers_more[label] = int(more)
    return contest


def by_nats(predicted: pd.DataFrame, labels: list[str]) -> Contest:
    """By the nats of `labels` in the table of `nats_at`; who has none is left out."""
    known = predicted.reindex(labels).dropna(subset="nats")
    losses = {row.Index: (row.nats, row.nats_low, row.nats_high) for row in known.itertuples()}
    return Contest(losses, _differences(known["nats"].to_dict()), {})


def _differences(nats: dict[str, float]) -> dict[tuple[str, str], Difference]:
    """Of every two labels, the dearer first."""
    dearest_first = sorted(nats, key=lambda label: (-nats[label], label))
    return {(a, b): _difference(nats[a], nats[b]) for a, b in combinations(dearest_first, 2)}


def _difference(dear: float, cheap: float) -> Difference:
    if cheap <= 0:
        return Difference(dear - cheap, np.nan, np.nan, 1.0 if dear == cheap else 0.0)
    log_ratio = np.log(dear / cheap)
    width = norm.isf((1 - LEVEL) / 2) * RATIO_APART
    low, high = (cheap * (np.exp(log_ratio + end) - 1) for end in (-width, width))
    return Difference(dear - cheap, float(low), float(high), float(2 * norm.sf(log_ratio / RATIO_APART)))
