"""One self-contained page about a run: what was measured, on which data, and how to read it."""

from html import escape
from pathlib import Path

import pandas as pd

from ..drawing.budget_axes import styles_of
from ..figures.make import write_figures
from ..loss.predicted import losses_of
from ..plots.run.compared import order_note
from ..plots.run.error_vs_bytes import TITLE as BYTES_TITLE
from ..stats.format import table_cells
from ..stats.intervals import by_trace
from ..stats.summary import summarise
from ..stats.words import BAND_NOTE, replay_note
from .answer import TITLE as ANSWER_TITLE
from .answer import answer_section
from .confirm_section import TITLE as CONFIRM_TITLE
from .confirm_section import confirm_section
from .html import (
    Html,
    anchor,
    contents,
    document,
    facts,
    folded,
    note,
    paragraph,
    plain_table,
    section,
    sortable_table,
    terms,
)
from .interactive import interactive
from .loss_section import LIMIT as LOSS_LIMIT
from .loss_section import TITLE as LOSS_TITLE
from .loss_section import loss_section
from .notes import notes_section
from .pictures import Album
from .provenance import (
    column_rows,
    config_text,
    data_facts,
    data_text,
    meta_facts,
    own_facts,
    run_date,
    run_name,
)
from .run_claims import claims_section
from .terms import LIMITS_TITLE, TERMS, limits

FAILURES_SHOWN = 100
FIRST = "error_vs_bytes_page"  # name of the picture below the answer


def write_report(frame, figures_folder, file, told=None):
    """Writes the page for `load`'s table to `file`, its figures to `figures_folder`; returns `file`.

    `told(number, total, name)` is a callback that runs before each kind of figure is drawn."""
    summary, losses = summarise(frame), losses_of(frame)
    figures = write_figures(frame, figures_folder, pdf=False, told=told, summary=summary, losses=losses)
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render(frame, summary, losses, figures, file.parent), encoding="utf-8")
    return file


def render(frame, summary, losses, figures, folder):
    """The page as text. `summary` and `losses` (or None) belong to `load`'s table, `figures` comes from
    `write_figures`, `folder` will hold the page."""
    meta = frame.attrs.get("meta", {})
    title = " · ".join(part for part in ("kvreplay report", run_name(meta)) if part)
    album = Album(figures, folder)
    first = [figure for figure in figures if figure.png.stem.endswith(FIRST)]
    others = [figure for figure in figures if figure not in first]
    cost = loss_section(frame, losses)
    limited = [*limits(data_text(frame)), *([LOSS_LIMIT] if cost else [])]
    top = {
        ANSWER_TITLE: answer_section(frame, summary, losses),
        LOSS_TITLE: cost,
        BYTES_TITLE: _first_figure(frame, summary, album, first),
        LIMITS_TITLE: [notes_section(frame), note("", limited)],
    }
    sections = {
        "Figures": [album.note(), *_pictures(album, others)],
        CONFIRM_TITLE: confirm_section(frame, losses),
        "Summary": _summary(frame, summary),
        "Claims": claims_section(frame, summary),
        "Cells without a result": _failures(frame),
        "How to read this": [terms(TERMS)],
        "Provenance": _provenance(frame, meta),
    }
    shown = {name: parts for name, parts in sections.items() if parts}
    return document(
        title,
        [
            f"<h1>{escape(title)}</h1>",
            paragraph(_lead(frame, meta), "lead"),
            *(section(name, *parts) for name, parts in top.items() if parts),
            contents([(name, anchor(name), []) for name in shown]),
            *(section(name, *parts) for name, parts in shown.items()),
            *_footer(frame),
        ],
    )


def _first_figure(frame, summary, album, figures):
    """Parts: the interactive figure or the pictures, and below them the captions and the links to the
    files."""
    if not figures:
        return []
    static = [album.picture(figure, figure.caption) for figure in figures]
    captions = [album.caption(figure, figure.caption) for figure in figures]
    return [Html("<figure>"), *interactive(frame, styles_of(summary), static), *captions, Html("</figure>")]


def _footer(frame):
    """Notes that hold for all figures, once."""
    notes = " ".join(replay_note(rows) for _, rows in by_trace(frame))
    return [Html(f"<footer>{paragraph(f'All figures: {notes} {BAND_NOTE}', 'aside')}</footer>")]


def _lead(frame, meta):
    """One line: the model, the trace, the cells, the date."""
    failed = int((frame["status"] != "ok").sum())
    traces = frame["trace_id"].unique()
    parts = [", ".join(sorted(frame["model"].unique()))]
    parts.append(f"trace {traces[0][:12]}" if len(traces) == 1 else f"{len(traces)} traces")
    parts.append(f"{len(frame)} cells" + (f", {failed} without a result" if failed else ""))
    searched = frame.attrs.get("searched", 0)
    parts.append(
        f"{searched} more from searches at single heads, shown in the figure of epsilon" if searched else ""
    )
    parts.append(run_date(meta))
    return " · ".join(part for part in parts if part)


def _pictures(album, figures):
    parts = []
    for figure in figures:
        parts.append(album.show(figure, figure.caption))
        if figure.cells:
            parts.append(sortable_table(*figure.cells))
    return parts


def _summary(frame, summary):
    header, rows = table_cells(summary)
    told = [
        "One row per method and budget (tokens per kv head). Click a column title to sort by it.",
        *order_note(frame),
    ]
    return [
        paragraph(" ".join(told)),
        sortable_table(header, rows),
    ]


def _failures(frame):
    """The cells without a result, grouped by error; empty if there are none."""
    failed = frame[frame["status"] != "ok"]
    if failed.empty:
        return []
    groups = failed.groupby(["label", "status", "error"], sort=True)
    rows = [
        (label, status, error or "no message", len(cells), _place(cells.iloc[0]))
        for (label, status, error), cells in groups
    ]
    more = len(rows) - FAILURES_SHOWN
    rest = [paragraph(f"… and {more} more kinds of failure in results.csv.")] if more > 0 else []
    return [plain_table(("method", "status", "error", "cells", "first at"), rows[:FAILURES_SHOWN]), *rest]


def _place(cell):
    budget = cell["budget_tokens"]
    at = f"{cell['prompt']}, layer {cell['layer']}, kv head {cell['kv_head']}"
    return at if pd.isna(budget) else f"{at}, budget {budget}"


def _provenance(frame, meta):
    parts = [facts(data_facts(rows)) for _, rows in frame.groupby("trace_id", sort=True)]
    parts.append(facts(meta_facts(meta) + own_facts()))
    config = config_text(meta)
    if config:
        parts.append(folded("Resolved configuration", f"<pre>{escape(config)}</pre>"))
    columns = column_rows(meta)
    if columns:
        parts.append(folded("Columns of results.csv", plain_table(("column", "unit", "meaning"), columns)))
    if not meta:
        parts.append(
            paragraph("results.meta.json is absent: versions, host and configuration are not recorded.")
        )
    return parts
