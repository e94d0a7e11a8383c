"""What a run says about a claim of a paper, and the outcomes there are."""

from dataclasses import dataclass

HOLDS, FAILS, MIXED, UNTESTABLE = "holds", "does not hold", "mixed", "not testable offline"
OUTCOMES = (HOLDS, FAILS, MIXED, UNTESTABLE)


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


def near(wanted, low, high, tolerance):
    """Outcome of "it is `wanted`": HOLDS if the whole interval lies within `tolerance` of it, FAILS if none
    of it does, else MIXED; so is a missing interval (NaN), which decides nothing.

    An interval that merely contains `wanted` is no evidence: the fewer the heads, the more it contains.
    """
    if abs(low - wanted) <= tolerance and abs(high - wanted) <= tolerance:
        return HOLDS
    return FAILS if high < wanted - tolerance or low > wanted + tolerance else MIXED
