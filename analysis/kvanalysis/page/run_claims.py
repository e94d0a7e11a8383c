"""The section of a run's page with the papers' claims that the run can test."""

from ..figures.listing import listed_figures
from .claims import by_paper, claims_table, counts_table, has_run
from .html import Html, folded, html, paragraph, plain_table
from .run_rules import run_claims
from .untestable import untestable_claims

INTRODUCTION = (
    "Rules applied to this run’s table; each row says which data it was tested on. A paper’s own figure is"
    " tested by its own configuration, with the paper’s settings; those are listed below."
)


def claims_section(frame, summary):
    """Parts of the section, for papers whose methods ran: claims that the run decides, what it lacks for
    others, configurations for further claims, and claims that nothing tests."""
    methods = set(frame["method"])
    decided, missing = run_claims(frame, summary)
    missing = [claim for claim in missing if has_run(claim.paper, methods)]
    papers = [part for paper, own in by_paper(decided) for part in (_heading(paper), claims_table(own))]
    return [
        paragraph(INTRODUCTION),
        *([counts_table(decided), *papers] if decided else [paragraph("This run decides no claim.")]),
        *_undecided(missing),
        *_elsewhere(methods),
        *_untestable(methods),
    ]


def _heading(paper):
    return Html(f"<h3>{html(paper)}</h3>")


def _undecided(missing):
    if not missing:
        return []
    rows = [(claim.paper, claim.claim, claim.source, claim.why) for claim in missing]
    table = plain_table(("paper", "claim", "source", "what is missing"), rows)
    return [folded(f"Not decided by this run ({len(missing)})", table)]


def _elsewhere(methods):
    figures = [figure for figure in listed_figures() if has_run(figure.paper, methods)]
    if not figures:
        return []
    rows = [(f.paper, f.number, f.expect, Html(f"<code>{html(f.command)}</code>")) for f in figures]
    table = plain_table(("paper", "figure", "the paper expects", "run"), rows)
    return [folded(f"Claims with a configuration of their own ({len(figures)})", table)]


def _untestable(methods):
    claims = [claim for claim in untestable_claims() if has_run(claim.paper, methods)]
    if not claims:
        return []
    tables = [part for paper, own in by_paper(claims) for part in (_heading(paper), claims_table(own))]
    return [folded(f"Claims that no replay can test ({len(claims)})", *tables)]
