"""The budget that an epsilon needs, over heads, of a results folder that holds epsilon.csv."""

from pathlib import Path

import numpy as np

from ...budgets.search import over_heads
from ...data.epsilon_csv import read_epsilon_csv
from ...drawing.budget_axes import handle
from ...drawing.saving import Drawn, draw_grid, write_csv
from ...drawing.style import looks
from ...stats.words import oneshot_notes, replay_note
from .epsilon_axes import MARGIN, aside, epsilon_axis, tokens_axis

HEIGHT = 2.4  # inches
HEADER = ("method", "epsilon", "a quarter of the heads", "half of them", "three quarters", "heads met",
          "heads", "miss again above")  # fmt: skip
RULE = (
    "The smallest replayed budget that suffices for half of the heads, bars: for a quarter and for three"
    " quarters of them. Hollow: the smallest budget that was tried. A curve ends where no budget suffices for"
    " half of the heads; a bar that leaves the axes at the top has no end."
)


def draw_frame(rows, folder, suffix=""):
    """Budget against epsilon, a curve for each label; [] without answers for the trace of `rows`."""
    answers = _answers(rows)
    if answers is None:
        return []
    points = over_heads(answers)
    if points.empty:
        return []
    csv = write_csv(points.replace(np.inf, np.nan), folder / f"budget_for_epsilon{suffix}.csv")
    style = looks(sorted(points["label"].unique()), set(rows.loc[rows["oracle"], "label"]))
    legend = ([handle(look, with_budget=True) for look in style.values()], list(style))
    measure = points["measure"].iloc[0]
    page, column = draw_grid(
        folder / f"budget_for_epsilon{suffix}",
        [lambda axes: _panel(axes, points, style)],
        legend,
        " ".join([replay_note(rows), f"Error: {measure}, seeds averaged. {RULE}", *oneshot_notes(rows)]),
        height=HEIGHT,
        titled=False,
    )
    title = f"Budget needed for {measure} of at most epsilon"
    return [Drawn(title, page, csv, column, _caption(points), table=_cells(points))]


def _answers(rows):
    """The rows of epsilon.csv of this trace, with `label`; None without any."""
    for folder in rows.attrs.get("folders", ())[:1]:
        answers = read_epsilon_csv(Path(folder) / "epsilon.csv")
        if answers is not None:
            names = rows[["trace_id", "method", "given_json", "label"]].drop_duplicates()
            answers = answers.merge(names.rename(columns={"given_json": "given"}))
            return answers if len(answers) else None
    return None


def _panel(axes, points, style):
    drawn = points[np.isfinite(points["half"])]
    ends = drawn[["quarter", "half", "most"]].to_numpy()
    ends = ends[np.isfinite(ends)]
    top = ends.max() * MARGIN if len(ends) else 1.0
    for number, (label, rows) in enumerate(points.groupby("label", sort=True)):
        _curve(axes, rows[np.isfinite(rows["half"])], style[label], aside(number, len(style)), top)
    epsilon_axis(axes, sorted(points["epsilon"].unique()))
    tokens_axis(axes, ends)


def _curve(axes, rows, look, beside, top):
    epsilon = rows["epsilon"] * beside
    axes.vlines(epsilon, rows["quarter"], rows["most"].clip(upper=top), color=look.colour, linewidth=0.7)
    axes.plot(epsilon, rows["half"], color=look.colour, linestyle=look.dashes)
    hollow = 2 * rows["at_smallest"] >= rows["heads"]
    for held, face in ((hollow, "white"), (~hollow, look.colour)):
        axes.plot(epsilon[held], rows.loc[held, "half"], look.marker, color=look.colour, markerfacecolor=face,
                  ms=3.2)  # fmt: skip


def _caption(points):
    again = points.groupby("label")["larger_misses"].max()
    rising = ", ".join(f"{label} ({most} heads)" for label, most in again[again > 0].items())
    return f"Larger budgets miss again at one epsilon or more: {rising}." if rising else ""


def _cells(points):
    """(header, rows) as `page.sortable_table` takes them."""
    rows = [
        [(row.label, row.label), (f"{row.epsilon:g}", row.epsilon),
         *(_tokens(budget) for budget in (row.quarter, row.half, row.most)),
         *((str(number), number) for number in (row.met, row.heads, row.larger_misses))]
        for row in points.itertuples()
    ]  # fmt: skip
    return HEADER, rows


def _tokens(budget):
    return (f"{budget:.0f}", budget) if np.isfinite(budget) else ("none", None)
