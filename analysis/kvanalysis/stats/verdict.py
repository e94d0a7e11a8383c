"""What a run says about a claim of a paper, and the outcomes there are."""

from dataclasses import dataclass
from math import isnan

HOLDS, FAILS, MIXED = "holds", "does not hold", "mixed"
UNDECIDED = "not decided"  # the run lacks what the rule needs: results, or a second head for an interval
UNTESTABLE = "not testable offline"
OUTCOMES = (HOLDS, FAILS, MIXED, UNDECIDED, UNTESTABLE)


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


def outcome_of(holds, fails, known=True):
    """HOLDS, FAILS or else MIXED; UNDECIDED unless `known`: what the rule needs was there."""
    if not known:
        return UNDECIDED
    return HOLDS if holds else FAILS if fails else MIXED


def above_zero(low, high):
    """Outcome of "it is positive" by an interval, of which a missing one (NaN) decides nothing."""
    return outcome_of(low > 0, high < 0, not isnan(low))


def near(wanted, low, high, tolerance):
    """Outcome of "it is `wanted`": HOLDS if the whole interval lies within `tolerance` of it, FAILS if none
    of it does, else MIXED. A missing interval (NaN) decides nothing.

    An interval that merely contains `wanted` is no evidence: the fewer the heads, the more it contains.
    """
    within = abs(low - wanted) <= tolerance and abs(high - wanted) <= tolerance
    outside = high < wanted - tolerance or low > wanted + tolerance
    return outcome_of(within, outside, not isnan(low))
