"""One self-contained page about a run: what was measured, on what, and how to read it."""

from html import escape
from pathlib import Path

import pandas as pd

from .figures import write_figures
from .format import table_cells
from .page import document, facts, picture, plain_table, section, sortable_table, terms
from .provenance import config_text, data_facts, meta_facts, own_facts, run_date, run_name
from .stats import LEVEL, RESAMPLES
from .summary import summarise

EMBED_BYTES = 3_500_000  # of PNG; base64 adds a third, and a page should stay below 5 MB
FAILURES_SHOWN = 100

TEACHER_FORCING = (
    "Replay is teacher-forced: the recorded queries, keys and values are fixed, so an approximation error "
    "never changes later tokens or deeper layers. These are errors of single attention outputs. "
    "Task accuracy, ROUGE and perplexity cannot be read off them."
)
TERMS = (
    (
        "rel. error (rel_err_out_mean)",
        "‖z − o‖₂ / ‖o‖₂ with o the exact attention output and z the method’s: a mean of ratios over "
        "the query heads of the group and the scored decode rows. 0 is exact, 1 is as wrong as a zero. "
        "Rows of the prompt are exact and not scored.",
    ),
    (
        "95 % interval",
        f"Percentile bootstrap ({LEVEL:.0%}, {RESAMPLES} resamples) over heads, one value per "
        "(prompt, layer, kv head), its seeds averaged first. It says how much the mean depends on "
        "the heads that were recorded; it does not cover other texts or models.",
    ),
    (
        "ε spectral (eps_spectral_mean)",
        "‖z − o‖₂ / (‖x‖₂ · ‖V‖<sub>op</sub>) with x the exact softmax vector and V all values so far: "
        "the form in which SubGen’s theorem bounds the error.",
    ),
    (
        "partition err. (partition_err_mean)",
        "|τ/Z − 1|, the relative error of the softmax denominator. For plain eviction it equals "
        "1 − kept mass.",
    ),
    (
        "kept mass (kept_mass_mean)",
        "Exact attention probability that falls on the tokens the method attends to.",
    ),
    ("peak kept (peak_kept_tokens)", "The most tokens resident after a step, mean over heads."),
    (
        "KiB/head, % of full (total_bytes, full_bytes)",
        "Exact ledger per kv head at its peak: keys, values, weights, scores, sketches and indices, and its "
        "ratio to the exact cache at the last token.",
    ),
    (
        "oracle, holds the full cache",
        "A method that reads what no cache of that budget could: the future, or any token at any step. "
        "Dashed in the figures. It bounds kept mass, not error, so a method may lie below it.",
    ),
    (
        "rows used",
        "Rows of results.csv behind the mean, of those that were run. A failed cell is never averaged away.",
    ),
)


def write_report(frame, figures_folder, file):
    """Writes the page for `load`'s table to `file`, its figures to `figures_folder`; returns `file`."""
    figures = write_figures(frame, figures_folder)
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render(frame, figures), encoding="utf-8")
    return file


def render(frame, figures):
    """The page as text; `figures` as `write_figures` returns them."""
    meta = frame.attrs.get("meta", {})
    title = " · ".join(part for part in ("kvreplay report", run_name(meta)) if part)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(_lead(frame, meta))}</p>',
        f'<p class="note">{escape(TEACHER_FORCING)}</p>',
        section("Figures", *_pictures(figures)),
        section("Summary", *_summary(frame)),
        *_failures(frame),
        section("How to read this", terms(TERMS)),
        section("Provenance", *_provenance(frame, meta)),
    ]
    return document(title, parts)


def _lead(frame, meta):
    """One line: the model, the trace, the cells, the date."""
    failed = int((frame["status"] != "ok").sum())
    traces = frame["trace_id"].unique()
    parts = [", ".join(sorted(frame["model"].unique()))]
    parts.append(f"trace {traces[0][:12]}" if len(traces) == 1 else f"{len(traces)} traces")
    parts.append(f"{len(frame)} cells" + (f", {failed} without a result" if failed else ""))
    parts.append(run_date(meta))
    return " · ".join(part for part in parts if part)


def _pictures(figures):
    """The figures, as many as fit; the rest by name, so that nothing is missing silently."""
    parts, room = [], EMBED_BYTES
    for figure in figures:
        size = sum(path.stat().st_size for path in (figure.png, figure.narrow) if path)
        if size <= room:
            parts.append(picture(figure.png, _beside(figure), figure.narrow))
            room -= size
        else:
            parts.append(
                f"<p>{escape(figure.title)}: {escape(figure.png.name)}, left out to keep this page small.</p>"
            )
        if figure.table:
            parts.append(sortable_table(*figure.table))
    return parts


def _beside(figure):
    return " ".join(part for part in (f"{figure.title}.", figure.caption, f"Data: {figure.csv.name}") if part)


def _summary(frame):
    header, rows = table_cells(summarise(frame))
    return [
        "<p>One row per method and budget (tokens per kv head). Select a column’s title to sort by it.</p>",
        sortable_table(header, rows),
    ]


def _failures(frame):
    """The cells without a result, grouped by what went wrong; empty if there are none."""
    failed = frame[frame["status"] != "ok"]
    if failed.empty:
        return []
    groups = failed.groupby(["label", "status", "error"], sort=True)
    rows = [
        (label, status, error or "no message", len(cells), _place(cells.iloc[0]))
        for (label, status, error), cells in groups
    ]
    more = len(rows) - FAILURES_SHOWN
    note = [f"<p>… and {more} more kinds of failure in results.csv.</p>"] if more > 0 else []
    table = plain_table(("method", "status", "error", "cells", "first at"), rows[:FAILURES_SHOWN])
    return [section("Cells without a result", table, *note)]


def _place(cell):
    budget = cell["budget_tokens"]
    at = f"{cell['prompt']}, layer {cell['layer']}, kv head {cell['kv_head']}"
    return at if pd.isna(budget) else f"{at}, budget {budget}"


def _provenance(frame, meta):
    parts = [facts(data_facts(rows)) for _, rows in frame.groupby("trace_id", sort=True)]
    parts.append(facts(meta_facts(meta) + own_facts()))
    config = config_text(meta)
    if config:
        parts.append(
            f"<details><summary>Resolved configuration</summary><pre>{escape(config)}</pre></details>"
        )
    if not meta:
        parts.append("<p>results.meta.json is absent: versions, host and configuration are not recorded.</p>")
    return parts
