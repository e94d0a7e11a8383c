"""Error against budget, all layers together and by layer."""

import math
from functools import partial

from matplotlib.ticker import NullLocator

from ...drawing.budget_axes import (
    above_notes,
    banded,
    drawable,
    frame_errors,
    handle,
    legend_text,
    set_budget_axis,
    styles_of,
)
from ...drawing.budget_axes import draw as draw_curves
from ...drawing.panel_grid import draw_empty_note, fewest_empty, finish_grid, label_lowest, panel_grid
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, axes_width, finish, new_figure
from ...stats.summary import summarise
from ...stats.words import oneshot_notes

BUDGET_AXIS, SHORT_BUDGET_AXIS = "budget [tokens per kv head]", "budget [tokens]"
ERROR_AXIS, SHORT_ERROR_AXIS = "mean relative output error", "mean rel. error"
NO_BANDS = "Without bands because of the many curves; 95% intervals over layers are in the CSV."
HEIGHT = {COLUMN_WIDTH: 2.2, PAGE_WIDTH: 3.0}  # inches
PANEL_HEIGHT = 1.25  # inches
# Panels per row, in order of preference among those that leave equally few places empty.
PANELS = {COLUMN_WIDTH: (2,), PAGE_WIDTH: (4, 5, 3)}
PANEL_GAP = 0.37  # share of a panel's height: its title and the tick labels above it
PANEL_MARKER = 3.0  # points
SHORT_LABEL_WIDTH = 1.9  # inches; narrower axes get the short budget label


def data(run):
    """(summary of all layers together, summary of each layer or None if there is only one)."""
    several = run.rows["layer"].nunique() > 1
    return run.summary, summarise(run.rows, by=("layer",)) if several else None


def draw(run, tables):
    whole, by_layer = tables
    paint = partial(_whole, whole, footnote(run.rows, whole))
    pictures = [Picture("Error against budget", whole, paint, name="error_vs_budget")]
    if by_layer is not None:
        paint = partial(_layer_panels, by_layer, footnote(run.rows, by_layer))
        title = "Error against budget, by layer"
        pictures.append(Picture(title, by_layer, paint, name="error_vs_budget_by_layer"))
    return pictures


def _whole(points, note, width):
    figure = new_figure(width)
    axes = figure.subplots()
    budget_panel(axes, points, points, axes_width(width))
    axes.set(xlabel=BUDGET_AXIS, ylabel=ERROR_AXIS)
    finish(figure, *budget_legend(points), note, HEIGHT[width])
    return figure


def _layer_panels(points, note, width):
    layers = sorted(points["layer"].unique())
    across = fewest_empty(len(layers), PANELS[width])
    wide = min(len(layers), across)
    panel_width = axes_width(width) / wide
    figure = new_figure(width)
    panels = panel_grid(figure, len(layers), across, sharex=True, sharey=True)
    for axes, layer in zip(panels, layers, strict=True):
        budget_panel(axes, points[points["layer"] == layer], points, panel_width)
        axes.set_title(f"layer {layer}")
        for line in axes.lines:
            line.set_markersize(PANEL_MARKER)
    middle_row = panels[::wide][(math.ceil(len(layers) / wide) - 1) // 2]
    middle_row.set_ylabel(SHORT_ERROR_AXIS)
    label_lowest(panels, across, BUDGET_AXIS if panel_width > SHORT_LABEL_WIDTH else SHORT_BUDGET_AXIS)
    finish_grid(figure, budget_legend(points), note, len(layers), across, PANEL_HEIGHT, gap=PANEL_GAP)
    return figure


def budget_panel(axes, points, everything, width):
    """One panel; the scales come from `everything`, so that panels of one figure agree.

    `width`: width of the panel in inches."""
    shown = drawable(everything)
    set_budget_ticks(axes, everything, width)
    styles = styles_of(everything)
    draw_curves(axes, drawable(points), {label: styles[label] for label in set(shown["label"])})
    frame_errors(axes, shown["rel_err_out_mean"])
    if not len(drawable(points)):
        draw_empty_note(axes)
        axes.yaxis.set_major_locator(NullLocator() if shown.empty else axes.yaxis.get_major_locator())


def set_budget_ticks(axes, everything, width):
    """The axis of budgets, with those ticks that fit into `width` inches."""
    set_budget_axis(axes, sorted(drawable(everything)["budget_tokens"].dropna().astype(int).unique()), width)


def budget_legend(points):
    """Handles and texts, the largest error first, in the order of the curves."""
    shown = drawable(points)
    styles = styles_of(points)
    worst_first = shown.groupby("label")["rel_err_out_mean"].mean().sort_values(ascending=False)
    rows = [shown[shown["label"] == label] for label in worst_first.index]
    handles = [handle(styles[group["label"].iloc[0]], group["budget_tokens"].notna().any()) for group in rows]
    return handles, [legend_text(group) for group in rows]


def footnote(rows, points):
    """How to read the picture, and what it leaves out."""
    parts = [] if banded(set(drawable(points)["label"])) else [NO_BANDS]
    if (points["oracle"] | points["full_cache"]).any():
        parts.append("Dashed: oracle, or holds the full cache; no cache of that budget can do this.")
    parts += oneshot_notes(rows)
    hollow = drawable(points)
    if (hollow["n_rows"] < hollow["n_cells"]).any():
        parts.append("Hollow: some cells have no result.")
    left_out = sorted(set(points["label"]) - set(hollow["label"]))
    if left_out:
        parts.append(f"Not drawn (no error beyond rounding, or no result): {', '.join(left_out)}.")
    return " ".join(parts + above_notes(points))
