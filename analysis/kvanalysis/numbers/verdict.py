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
