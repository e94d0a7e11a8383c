"""One-shot methods with and without the exact tail: the error of the compressed prompt alone."""

import pandas as pd
from matplotlib.lines import Line2D

from ...drawing.row_panels import log_errors, panels_by_budget
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.families import at_budget, budget_columns, budget_words, budgets_of, has_values
from ...stats.intervals import size_interval, unit_means, used_rows
from .compared import shares_note

WHOLE, PREFIX = "rel_err_out_mean", "rel_err_prefix_mean"
PANELS = {COLUMN_WIDTH: 1, PAGE_WIDTH: 4}
# measure: colour, marker, its face colour, and its offset from the line of the row
MARKS = {WHOLE: ("#0072B2", "o", "#0072B2", -0.14), PREFIX: ("#D55E00", "D", "white", 0.14)}
WORDS = {
    WHOLE: "error of the output, later tokens exact",
    PREFIX: "prefix only: later tokens removed from z and o",
}
LEAST = 1e-5  # smaller means are rounding


def data(run):
    """A row per (budget, label) that has a prefix error: both errors with intervals, over the heads that have
    both."""
    used = used_rows(run.rows)
    if not has_values(used, PREFIX):
        return None
    used = used[used[PREFIX].notna() & used["budget_tokens"].notna()]
    found = []
    groups = (
        (budget, *each) for budget in budgets_of(used) for each in at_budget(used, budget).groupby("label")
    )
    for budget, label, rows in groups:
        units = unit_means(rows, [WHOLE, PREFIX])
        row = {**budget_columns(budget), "label": label, "n_units": len(units)}
        for name in (WHOLE, PREFIX):
            row[name], row[f"{name}_low"], row[f"{name}_high"] = size_interval(units[name])
        found.append(row | {"ratio": row[PREFIX] / row[WHOLE] if row[WHOLE] > LEAST else float("nan")})
    return pd.DataFrame(found) if found else None


def draw(run, table):
    """A panel for each budget."""
    order = list(table.groupby("label")[PREFIX].mean().sort_values().index)
    legend = [Line2D([], [], color=colour, marker=marker, markerfacecolor=face, linestyle="", markersize=3.4)
              for colour, marker, face, _ in MARKS.values()]  # fmt: skip
    shown = (legend, list(WORDS.values())), _note(run)
    panels = panels_by_budget(table, order, _paint, "mean rel. error", PANELS, *shown)
    title = "Error of the compressed prompt alone"
    return [Picture(title, table, panels, _caption(table), name="prefix_error")]


def _paint(axes, rows, order):
    for _, row in rows.iterrows():
        at = order.index(row["label"])
        axes.hlines(at, row[WHOLE], row[PREFIX], color="#BBBBBB", linewidth=0.8, zorder=1)
        for name, (colour, marker, face, aside) in MARKS.items():
            axes.hlines(at + aside, row[f"{name}_low"], row[f"{name}_high"], color=colour, linewidth=0.9)
            axes.plot(row[name], at + aside, marker, color=colour, markerfacecolor=face, markersize=3.2)
    values = rows[[*MARKS, *(f"{name}_{end}" for name in MARKS for end in ("low", "high"))]].stack()
    values = values[values > LEAST]
    log_errors(axes, values.min() / 1.2, values.max() * 1.2)


def _note(run):
    told = (
        "A one-shot method keeps every token after the prompt, and late queries attend to these: their exact"
        " share hides the error of the cut. Bars: like bands in other figures."
    )
    return " ".join([told, *shares_note(run.rows)])


def _caption(table):
    texts = []
    for budget in budgets_of(table):
        ratios = at_budget(table, budget)["ratio"].dropna()
        if len(ratios):
            span = f"({ratios.min():.2f} to {ratios.max():.2f})"
            texts.append(f"{budget_words(budget, 'B=')} {ratios.median():.2f} {span}")
    return f"Prefix error over output error, median of the methods and range: {'; '.join(texts)}."
