"""The budget that meets an epsilon, over heads, for a results folder that holds epsilon.csv."""

from functools import partial
from pathlib import Path

import numpy as np

from ...budgets.search import labelled, over_heads
from ...data.epsilon_csv import read_epsilon_csv
from ...drawing.saving import Picture, in_grid
from ...stats.words import oneshot_notes
from .epsilon_axes import RULE, draw_needed

HEIGHT = 2.4  # inches
HEADER = ("method", "epsilon", "a quarter of the heads", "half of them", "three quarters", "heads met",
          "heads", "smaller ones meet")  # fmt: skip


def data(run):
    """The budgets that meet each epsilon, over heads; None without answers for this trace."""
    answers = _answers(run.rows)
    points = None if answers is None else over_heads(answers)
    return None if points is None or points.empty else points


def draw(run, points):
    """Budget against epsilon, a curve for each label."""
    rows, measure = run.rows, points["measure"].iloc[0]
    styles = {label: run.styles[label] for label in sorted(points["label"].unique())}
    legend = ([style.handle() for style in styles.values()], list(styles))
    note = " ".join([f"Error: {measure}. {RULE}", *oneshot_notes(rows)])
    panels = in_grid([partial(draw_needed, points, styles)], legend, note, height=HEIGHT, titled=False)
    title, table = f"Budget needed for {measure} of at most epsilon", points.replace(np.inf, np.nan)
    return [Picture(title, table, panels, _caption(points), "budget_for_epsilon", cells=_cells(points))]


def _answers(rows):
    """The rows of epsilon.csv for this trace, with `label`; None if there are none."""
    for folder in rows.attrs.get("folders", ())[:1]:
        answers = read_epsilon_csv(Path(folder) / "epsilon.csv")
        if answers is not None:
            answers = labelled(answers, rows)
            return answers if len(answers) else None
    return None


def _caption(points):
    smaller = points.groupby("label")["smaller_meets"].max()
    rising = ", ".join(f"{label} ({most} heads)" for label, most in smaller[smaller > 0].items())
    return f"A budget meets an epsilon although a larger budget misses it: {rising}." if rising else ""


def _cells(points):
    """(header, rows) as for `page.html.sortable_table`."""
    rows = [
        [(row.label, row.label), (f"{row.epsilon:g}", row.epsilon),
         *(_tokens(budget) for budget in (row.quarter, row.half, row.most)),
         *((str(number), number) for number in (row.met, row.heads, row.smaller_meets))]
        for row in points.itertuples()
    ]  # fmt: skip
    return HEADER, rows


def _tokens(budget):
    return (f"{budget:.0f}", budget) if np.isfinite(budget) else ("none", None)
