"""The papers' claims and what replay says about them: one record per claim, counted and shown by paper."""

from dataclasses import dataclass

from ..stats.verdict import FAILS, HOLDS, MIXED, OUTCOMES, UNDECIDED, UNTESTABLE
from .html import Html, card_table, html, plain_table

NOT_PROMISED = "No paper promises it"  # stands in place of a paper's name, and comes last
PAPERS = ("SubGen", "H2O", "BUZZ", "BalanceKV")  # these come first, in this order; others follow by name
# Words, a sign and a colour, so that no outcome depends on colour alone.
SIGNS = {
    HOLDS: ("✓", "holds"),
    FAILS: ("✗", "fails"),
    MIXED: ("±", "mixed"),
    UNDECIDED: ("?", "untestable"),
    UNTESTABLE: ("–", "untestable"),
}
HEADER = ("claim", "outcome", "numbers", "tested how", "on what", "source")


@dataclass(frozen=True)
class Claim:
    """One statement of a paper. `how`: the test, or why there is none; `data`: what the test ran on;
    `outcome`: one of OUTCOMES; `seen`: Html that links to the figure behind it."""

    paper: str
    claim: str
    source: str
    how: str
    outcome: str
    numbers: str = ""
    data: str = ""
    seen: str = ""


def by_paper(items):
    """[(paper, its items)] for items that have a `paper`, in the order of PAPERS."""
    names = sorted({item.paper for item in items}, key=lambda name: (_rank(name), name))
    return [(name, [item for item in items if item.paper == name]) for name in names]


def _rank(paper):
    if paper == NOT_PROMISED:
        return len(PAPERS) + 1
    return PAPERS.index(paper) if paper in PAPERS else len(PAPERS)


def has_run(paper, methods):
    """Whether a paper's method is among `methods`; true for a name that is not in PAPERS."""
    named = [each.lower() for each in PAPERS if each in paper]
    return not named or any(method.startswith(tuple(named)) for method in methods)


def counts_table(claims):
    """The number of claims with each outcome, by paper."""
    rows = [[paper, *_counts(own)] for paper, own in by_paper(claims)]
    return plain_table(["paper", *OUTCOMES, "claims"], [*rows, ["all", *_counts(claims)]])


def _counts(claims):
    found = [claim.outcome for claim in claims]
    return [*(found.count(outcome) for outcome in OUTCOMES), len(found)]


def claims_table(claims):
    """One row per claim; outcomes sort in the order of OUTCOMES."""
    return card_table(HEADER, [_cells(claim) for claim in claims], "claims")


def _cells(claim):
    texts = (claim.numbers, claim.how, claim.data)
    seen = Html(f"{html(claim.source)} {claim.seen}") if claim.seen else claim.source
    return [
        (claim.claim, claim.claim),
        (badge(claim.outcome), OUTCOMES.index(claim.outcome)),
        *((text, text or None) for text in texts),
        (seen, claim.source),
    ]


def badge(outcome):
    sign, kind = SIGNS[outcome]
    return Html(f'<span class="outcome {kind}">{sign} {html(outcome)}</span>')
