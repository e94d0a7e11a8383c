"""What a method loses at a share of the full cache's bytes: replayed there, or between two replayed budgets.

Shares are those of a prompt's cache: bytes of all its heads over those of the full cache, at the peak.
Between two budgets the error of each head is taken to be a power of the bytes. Nothing is extrapolated.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..stats.intervals import UNIT, unit_means
from .measures import loss

NEAR = 0.97  # a replayed budget within 3 % below the share stands for it
TEXT = UNIT[:2]


@dataclass(frozen=True)
class Reached:
    """`values`: the measure of every unit at the share; `share`: bytes over those of the full cache, the mean
    over texts; `how` in words, `interpolated` whether it is no replayed budget."""

    values: pd.Series
    share: float
    how: str
    interpolated: bool


@dataclass(frozen=True)
class Unreached:
    """Why a method cannot be compared at the share."""

    why: str


def reached(rows: pd.DataFrame, share: float, column: str) -> Reached | Unreached:
    """`rows`: those of one method instance, finished, all budgets."""
    found = [_of_text(own, share, column) for _, own in rows.groupby(TEXT, sort=True)]
    lacking = [each for each in found if isinstance(each, Unreached)]
    if lacking:
        return lacking[0]
    hows = list(dict.fromkeys(each.how for each in found))
    return Reached(
        values=pd.concat([each.values for each in found]),
        share=float(np.mean([each.share for each in found])),
        how="; ".join(hows) if len(hows) < 3 else f"{hows[0]}, and so on",
        interpolated=any(each.interpolated for each in found),
    )


def _of_text(rows: pd.DataFrame, share: float, column: str) -> Reached | Unreached:
    budgets = rows["budget_tokens"].fillna(0).astype(int)
    asked = rows["budget_share"].eq(share) if "budget_share" in rows else pd.Series(False, rows.index)
    shares = _shares(rows, budgets)
    if asked.any():
        return _at(rows, budgets, column, shares, int(budgets[asked].iloc[0]))
    below, beyond = shares[shares <= share * (1 + 1e-9)], shares[shares > share * (1 + 1e-9)]
    if below.empty:
        return Unreached(f"its least here is {shares.min():.1%} of the full cache")
    if below.iloc[-1] >= NEAR * share:
        return _at(rows, budgets, column, shares, below.index[-1])
    if beyond.empty:
        return Unreached(f"its most here is {shares.max():.1%} of the full cache")
    return _between(rows, budgets, column, shares, (below.index[-1], beyond.index[0]), share)


def _shares(rows: pd.DataFrame, budgets: pd.Series) -> pd.Series:
    """Share of the full cache's bytes over budgets, ascending in both: a budget that takes fewer bytes than a
    smaller one, as sizes that the data decides can, replaces it."""
    sums = rows.groupby(budgets)[["total_bytes", "full_bytes"]].sum().sort_index()
    shares = sums["total_bytes"] / sums["full_bytes"]
    least_above = shares[::-1].cummin()[::-1]
    return shares[shares <= least_above]


def _values(rows: pd.DataFrame, budgets: pd.Series, column: str, budget: int) -> pd.Series:
    return loss(unit_means(rows[budgets == budget], [column])[column], column).dropna()


def _at(rows, budgets, column, shares, budget: int) -> Reached:
    size = f"budget {budget}" if budget else "its one size"
    share = shares.get(budget, np.nan)
    return Reached(_values(rows, budgets, column, budget), float(share), size, False)


def _between(rows, budgets, column, shares, pair: tuple[int, int], share: float) -> Reached:
    low, high = (_values(rows, budgets, column, budget) for budget in pair)
    both = pd.concat([low, high], axis=1, join="inner")
    ends = np.log(shares[list(pair)].to_numpy())
    weight = (np.log(share) - ends[0]) / (ends[1] - ends[0])
    a, b = both.to_numpy().T
    positive = (a > 0) & (b > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.exp((1 - weight) * np.log(a) + weight * np.log(b))
    values = np.where(positive, powers, (1 - weight) * a + weight * b)
    how = f"between budgets {pair[0]} ({shares[pair[0]]:.1%}) and {pair[1]} ({shares[pair[1]]:.1%})"
    return Reached(pd.Series(values, both.index), share, how, True)
