"""What a run says about a claim of a paper: the outcomes there are, and the one rule that decides."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

HOLDS, FAILS, MIXED = "holds", "does not hold", "mixed"
# The run lacks what the rule needs (results, blocks for an interval), or its intervals contain both answers.
UNDECIDED = "not decided"
UNTESTABLE = "not testable offline"
OUTCOMES = (HOLDS, FAILS, MIXED, UNDECIDED, UNTESTABLE)
RULE = (
    "holds if the interval lies wholly on the claimed side at more than half of them and wholly on the other"
    " at none, does not hold the other way round, mixed if places contradict each other, else not decided"
)


@dataclass(frozen=True)
class Verdict:
    """What a run says about one claim of a paper.

    `outcome` is one of OUTCOMES; `numbers` are the measured ones that decide, as text.
    """

    claim: str
    source: str
    how: str
    outcome: str
    numbers: str = ""

    def __post_init__(self):
        assert self.outcome in OUTCOMES, self.outcome


def judge(intervals: Iterable[tuple[float, float]], line: float = 0.0) -> str:
    """Outcome of "it lies below `line`" by the (low, high) of every place where it was measured: RULE. A
    missing interval (NaN) decides nothing, and is no place."""
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
    """Outcome of "it is `wanted`": HOLDS if the whole interval lies within `tolerance` of it, FAILS if none
    of it does, else UNDECIDED; a missing interval (NaN) decides nothing.

    An interval that merely contains `wanted` is no evidence: the fewer the heads, the more it contains.
    """
    if abs(low - wanted) <= tolerance and abs(high - wanted) <= tolerance:
        return HOLDS
    return FAILS if high < wanted - tolerance or low > wanted + tolerance else UNDECIDED


def of_counts(agree: int, tried: int) -> str:
    """Outcome of a statement without chance in it, from how many of the places tried agree."""
    if not tried:
        return UNDECIDED
    return HOLDS if agree == tried else MIXED if agree else FAILS
