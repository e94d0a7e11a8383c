"""Verdicts of a run on a paper's claim: the possible outcomes, and the one rule that decides."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

HOLDS, FAILS, MIXED = "holds", "does not hold", "mixed"
# The run lacks something that the rule needs (results, blocks for an interval), or intervals include both
# answers.
UNDECIDED = "not decided"
UNTESTABLE = "not testable offline"
OUTCOMES = (HOLDS, FAILS, MIXED, UNDECIDED, UNTESTABLE)
RULE = (
    "holds if the interval lies wholly on the claimed side at more than half of them and wholly on the other"
    " at none; does not hold in the opposite case; mixed if places contradict each other; else not decided"
)


@dataclass(frozen=True)
class Verdict:
    """A run's verdict on one claim of a paper.

    `outcome` is one of OUTCOMES; `numbers` are the measured numbers that decide, as text.
    """

    claim: str
    source: str
    how: str
    outcome: str
    numbers: str = ""

    def __post_init__(self):
        assert self.outcome in OUTCOMES, self.outcome


def judge(intervals: Iterable[tuple[float, float]], line: float = 0.0) -> str:
    """The outcome of "it lies below `line`" from the (low, high) of every place where it was measured: RULE.
    A missing interval (NaN) does not count as a place."""
    known = [(low, high) for low, high in intervals if not isnan(low)]
    below = sum(high < line for _, high in known)
    above = sum(low > line for low, _ in known)
    if below and above:
        return MIXED
    if 2 * below > len(known):
        return HOLDS
    return FAILS if 2 * above > len(known) else UNDECIDED


def above(intervals: Iterable[tuple[float, float]], line: float = 0.0) -> str:
    """`judge` of "it lies above `line`"."""
    return judge([(-high, -low) for low, high in intervals], -line)


def near(wanted: float, low: float, high: float, tolerance: float) -> str:
    """The outcome of "it is `wanted`": HOLDS if the whole interval lies within `tolerance` of it, FAILS if no
    part of it does, else UNDECIDED; also UNDECIDED if the interval is missing (NaN).

    An interval that merely contains `wanted` is no evidence: with fewer heads it contains more.
    """
    if abs(low - wanted) <= tolerance and abs(high - wanted) <= tolerance:
        return HOLDS
    return FAILS if high < wanted - tolerance or low > wanted + tolerance else UNDECIDED


def of_counts(agree: int, tried: int) -> str:
    """The outcome of a statement without randomness, from the number of places tried that agree."""
    if not tried:
        return UNDECIDED
    return HOLDS if agree == tried else MIXED if agree else FAILS
