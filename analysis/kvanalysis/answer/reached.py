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
    points = _points(rows, column)
    asked = [point for point in points if any(np.isclose(share, each, rtol=1e-9) for each in point.asked)]
    if asked:
        return Reached(asked[0].values, asked[0].share, asked[0].words, False)
    below = [point for point in points if point.share <= share * (1 + 1e-9)]
    if not below:
        return Unreached(f"its least here is {points[0].share:.1%} of the full cache")
    if below[-1].share >= NEAR * share:
        return Reached(below[-1].values, below[-1].share, below[-1].words, False)
    if len(below) == len(points):
        return Unreached(f"its most here is {points[-1].share:.1%} of the full cache")
    return _between(below[-1], points[len(below)], share)


@dataclass(frozen=True)
class _Point:
    """A budget of one text: `share` of the full cache's bytes, over all heads; `asked`: the shares for which
    it was asked."""

    share: float
    values: pd.Series
    words: str
    asked: tuple[float, ...]


def _points(rows: pd.DataFrame, column: str) -> list[_Point]:
    """By rising bytes. Heads that were asked for one share belong together, whatever their tokens."""
    asked = rows["budget_share"].fillna("") if "budget_share" in rows else pd.Series("", rows.index)
    tokens = rows["budget_tokens"].fillna(0).astype(int)
    points = [_point(own, column) for _, own in rows.groupby([asked, tokens.where(asked == "", -1)])]
    return sorted(points, key=lambda point: point.share)


def _point(rows: pd.DataFrame, column: str) -> _Point:
    asked = rows["budget_share"].iloc[0] if "budget_share" in rows else ""
    return _Point(
        share=float(rows["total_bytes"].sum() / rows["full_bytes"].sum()),
        values=loss(unit_means(rows, [column])[column], column).dropna(),
        words=_budget_words(rows["budget_tokens"]),
        asked=tuple(float(each) for each in str(asked or "").split(";") if each),
    )


def _budget_words(tokens: pd.Series) -> str:
    if tokens.isna().all():
        return "its one size"
    low, high = int(tokens.min()), int(tokens.max())
    return f"budget {low}" if low == high else f"budgets {low} to {high}"


def _between(low: _Point, high: _Point, share: float) -> Reached:
    both = pd.concat([low.values, high.values], axis=1, join="inner")
    weight = np.log(share / low.share) / np.log(high.share / low.share)
    a, b = both.to_numpy().T
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.exp((1 - weight) * np.log(a) + weight * np.log(b))
    values = np.where((a > 0) & (b > 0), powers, (1 - weight) * a + weight * b)
    how = f"between {low.words} ({low.share:.1%}) and {high.words} ({high.share:.1%})"
    return Reached(pd.Series(values, both.index), share, how, True)
