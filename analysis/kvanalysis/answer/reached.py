"""A method's error at a share of the full cache's bytes: replayed there, or between two replayed budgets.

A share is taken over the compared layers: bytes of all their heads over the full cache's bytes, as a Size
counts them. Between two budgets the error of each head is interpolated as a power of the bytes. Nothing is
extrapolated.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..data.metrics import LESS, loss
from ..data.shares import by_share
from ..stats.intervals import UNIT, unit_means
from .sizes import PEAK, SIZES, Size

NEAR = 0.97  # a replayed budget at most 3 % below the share stands for the share
EXACT = 1e-9  # relative tolerance: shares that are the same number
TEXT = UNIT[:2]


@dataclass(frozen=True)
class Reached:
    """`values`: the measure of every unit at the share; `share`: bytes over the full cache's bytes, the mean
    over texts; `how`: the way it was found, in words."""

    values: pd.Series
    share: float
    how: str


@dataclass(frozen=True)
class Unreached:
    """Why a method cannot be compared at the share."""

    why: str


@dataclass(frozen=True)
class Question:
    """The column and share that every method is asked for: `column` at `share` of the bytes that `size`
    counts. `marked`: whether the column `budget_share` holds shares of these bytes. `better`: whether less or
    more of the column is better."""

    share: float
    column: str
    size: Size = SIZES[PEAK]
    marked: bool = True
    better: str = LESS


def reached(rows: pd.DataFrame, asked: Question) -> Reached | Unreached:
    """The measure of one method instance at the share. `rows`: its finished rows, all budgets."""
    found = [_of_text(own, asked) for _, own in rows.groupby(TEXT, sort=True)]
    lacking = [each for each in found if isinstance(each, Unreached)]
    if lacking:
        return lacking[0]
    hows = list(dict.fromkeys(each.how for each in found))
    return Reached(
        values=pd.concat([each.values for each in found]),
        share=float(np.mean([each.share for each in found])),
        how="; ".join(hows) if len(hows) < 3 else f"{hows[0]}, and so on",
    )


def smallest_and_largest(rows: pd.DataFrame, asked: Question) -> list[tuple[float, float]]:
    """The smallest and the largest share of one method instance in each text in which it has a number.
    Arguments as in `reached`."""
    texts = [_points(own, asked) for _, own in rows.groupby(TEXT, sort=True)]
    return [(points[0].share, points[-1].share) for points in texts if points]


def _of_text(rows: pd.DataFrame, asked: Question) -> Reached | Unreached:
    points, share = _points(rows, asked), asked.share
    if not points:
        return Unreached("no head has a number here")
    fits = [point for point in points if point.share <= share * (1 + EXACT)]
    for_it = [
        point for point in fits if point.asked is not None and np.isclose(point.asked, share, rtol=EXACT)
    ]
    if for_it:
        return Reached(for_it[0].values, for_it[0].share, for_it[0].words)
    if not fits:
        return Unreached(f"smallest size here is {100 * points[0].share:.1f} % of {asked.size.short}")
    if fits[-1].share >= NEAR * share:
        return Reached(fits[-1].values, fits[-1].share, fits[-1].words)
    if len(fits) == len(points):
        return Unreached(f"largest size here is {100 * points[-1].share:.1f} % of {asked.size.short}")
    return _between(fits[-1], points[len(fits)], share)


@dataclass(frozen=True)
class _Point:
    """A budget of one text: `share`, the share of the full cache's bytes that it takes, over all heads;
    `asked`, the share of these bytes that was requested, or None."""

    share: float
    values: pd.Series
    words: str
    asked: float | None


def _points(rows: pd.DataFrame, question: Question) -> list[_Point]:
    """Points by rising bytes, over the heads of the text. A budget that was replayed on some of the heads
    only is skipped, unless no other budget is there. Heads that were asked for one share belong together,
    whatever their budgets in tokens."""
    tokens = [
        _point(own, question, None) for _, own in rows.groupby(rows["budget_tokens"].fillna(0).astype(int))
    ]
    marked = by_share(rows).dropna(subset=["share"])
    shares = [
        _point(own, question, share if question.marked else None)
        for share, own in marked.groupby("share")
        if _has_single_budget(own)
    ]
    points = [point for point in (*shares, *tokens) if len(point.values)]
    most = max((len(point.values) for point in points), default=0)
    return sorted((point for point in points if len(point.values) == most), key=lambda point: point.share)


def _has_single_budget(rows: pd.DataFrame) -> bool:
    """Whether every head and seed has one budget at a share. Runs in one folder disagree if they were asked
    for other shares (of the mean, or over other layers)."""
    return not rows.duplicated([*UNIT, "seed"]).any()


def _point(rows: pd.DataFrame, question: Question, asked: float | None) -> _Point:
    size, column = question.size, question.column
    return _Point(
        share=float(rows[size.held].sum() / rows[size.full].sum()),
        values=loss(unit_means(rows, [column])[column], question.better).dropna(),
        words=_budget_words(rows["budget_tokens"]),
        asked=asked,
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
    how = f"between {low.words} ({100 * low.share:.1f} %) and {high.words} ({100 * high.share:.1f} %)"
    return Reached(pd.Series(values, both.index), share, how)
