"""One self-contained page for a folder of figures: the papers' claims, and what replay says about them."""

from html import escape
from pathlib import Path

import pandas as pd

from .claims import badge, by_paper, claims_table, counts_table
from .figure_folder import places, read_folder
from .html import Html, anchor, contents, document, facts, folded, html, note, paragraph, plain_table, section
from .pictures import Album
from .provenance import data_text, own_facts
from .terms import LIMITS_TITLE, limits
from .untestable import untestable_claims

TITLE = "kvreplay · the papers’ figures, replayed"
CLAIMS = (
    "Every claim that a figure below tests, with the deciding rule and the numbers; and, folded, the claims"
    " that no replay can test, with the reason. “Holds” and “does not hold” refer to this model and these"
    " texts only."
)


def write_figures_page(folder, file):
    """Writes the page for `folder` (subfolders with figure.json) to `file`; returns `file`."""
    made, unfinished = read_folder(folder)
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render(made, unfinished, file.parent), encoding="utf-8")
    return file


def render(made, unfinished, page_folder):
    """The page as text; links are relative to `page_folder`."""
    album = Album([drawn for one in made for drawn in one.figures], page_folder)
    claims = [claim for one in made for claim in one.claims]
    offline = [claim for claim in untestable_claims() if claim.paper in {one.paper for one in made}]
    heads = pd.concat([places(one.folder) for one in made]).drop_duplicates()
    data = data_text(heads) if len(heads) else "No head was replayed"
    papers = by_paper(made)
    return document(
        TITLE,
        [
            f"<h1>{escape(TITLE)}</h1>",
            paragraph(_lead(made, claims + offline), "lead"),
            note(LIMITS_TITLE, limits(data)),
            album.note(),
            *_unfinished(unfinished),
            *_quick(made),
            contents(_contents(papers)),
            section("Claims", paragraph(CLAIMS), *_claims(claims, offline)),
            *(section(paper, *(_figure(one, album) for one in own)) for paper, own in papers),
            section("Provenance", *_provenance(made, heads)),
        ],
    )


def _lead(made, claims):
    pictures = sum(len(one.figures) for one in made)
    return f"{len(made)} configurations · {pictures} pictures · {len(claims)} claims"


def _unfinished(names):
    if not names:
        return []
    return [paragraph(f"Not drawn, see the messages of `kvreplay figures`: {', '.join(names)}.", "note")]


def _quick(made):
    names = [one.said["name"] for one in made if one.said["quick"]]
    if not names:
        return []
    return [
        paragraph(
            f"Drawn from one kv head per layer, as a quick look and not as a result: {', '.join(names)}.",
            "note",
        )
    ]


def _contents(papers):
    figures = [
        (paper, anchor(paper), [(one.said["title"], one.id, []) for one in own]) for paper, own in papers
    ]
    return [("Claims", "claims", []), *figures, ("Provenance", "provenance", [])]


def _claims(claims, offline):
    """Parts: the counts, the tested claims, and, folded, the untestable ones."""
    folds = f"Claims that no replay can test ({len(offline)})"
    tables = _claims_by_paper(offline, "offline-")
    return [
        counts_table(claims + offline),
        *_claims_by_paper(claims, "claims-"),
        *([folded(folds, *tables)] if offline else []),
    ]


def _claims_by_paper(claims, before):
    return [
        part
        for paper, own in by_paper(claims)
        for part in (Html(f'<h3 id="{anchor(before + paper)}">{html(paper)}</h3>'), claims_table(own))
    ]


def _figure(made, album):
    said = made.said
    return "\n".join(
        [
            f'<article id="{made.id}">',
            f"<h3>{html(said['number'])} · {html(said['title'])}</h3>",
            paragraph(f"{said['mark_means'][0].upper()}{said['mark_means'][1:]}. Data: {made.data}."),
            paragraph(Html(f"<strong>The paper:</strong> {html(said['expect'])}")),
            *(album.show(drawn, drawn.caption) for drawn in made.figures),
            _verdicts(made.claims),
            paragraph(Html(f"<code>{html(made.command)}</code>"), "links"),
            "</article>",
        ]
    )


def _verdicts(claims):
    if not claims:
        return paragraph("This figure tests no claim by a rule; it is a picture to read.")
    lines = (
        f"<li>{badge(claim.outcome)}: {html(claim.claim)}"
        + (f" <br>{html(claim.numbers)}" if claim.numbers else "")
        + "</li>"
        for claim in claims
    )
    return Html(f'<ul class="verdicts">{"".join(lines)}</ul>')


def _provenance(made, heads):
    rows = [(trace, data_text(own)) for trace, own in heads.groupby("trace_id", sort=True)]
    table = [plain_table(("trace", "heads that the figures use"), rows)] if rows else []
    return [*table, facts([("configurations", ", ".join(one.said["name"] for one in made)), *own_facts()])]
