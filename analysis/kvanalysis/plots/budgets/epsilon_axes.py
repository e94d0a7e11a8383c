"""The axes for budgets that meet an epsilon: both logarithmic."""

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from ...drawing.log_ticks import LEAST_TICKS, plain_log, ticks_at

SIDE_STEP, MARGIN = (
    1.018,
    1.15,
)  # factor on epsilon between labels, and factor on tokens beyond the drawn ones
NEEDED = (
    "Needed: the smallest replayed budget such that it and every larger one meet epsilon, seeds averaged"
    " first."
)
RULE = (
    f"{NEEDED} Curves: for half of the heads; bars: from a quarter to three quarters of them. Hollow: the"
    " smallest budget that was tried. A curve ends where no budget suffices for half of the heads; a bar that"
    " leaves the axes at the top has no upper end."
)


def _epsilon_axis(axes, epsilons):
    """Sets the x axis, with a tick at each epsilon."""
    axes.set(xscale="log", xlabel="epsilon: error not to be exceeded")
    ticks_at(axes.xaxis, epsilons)


def _tokens_axis(axes, budgets):
    """Sets the y axis up to the largest of `budgets`; writes a note if there are none."""
    axes.set(ylabel="budget needed [tokens]")
    if not len(budgets):
        axes.text(0.5, 0.5, "no replayed budget suffices", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
        return
    axes.set_yscale("log", base=2)
    low, high = budgets.min() / MARGIN, budgets.max() * MARGIN
    axes.set_ylim(low, high)
    if np.floor(np.log2(high)) - np.ceil(np.log2(low)) + 1 < LEAST_TICKS:
        plain_log(axes.yaxis)
        return
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_needed(points, styles, axes):
    """Draws a curve for each label of `points`, which come from budgets.search.over_heads."""
    shown = points[np.isfinite(points["half"])]
    shown = shown.assign(hollow=2 * shown["at_smallest"] >= shown["heads"])
    ends = shown[["quarter", "half", "most"]].to_numpy()
    ends = ends[np.isfinite(ends)]
    top = ends.max() * MARGIN if len(ends) else 1.0
    for number, (label, style) in enumerate(styles.items()):
        rows = shown[shown["label"] == label]
        # Bars of labels are drawn side by side.
        epsilon = rows["epsilon"] * SIDE_STEP ** (number - (len(styles) - 1) / 2)
        axes.vlines(epsilon, rows["quarter"], rows["most"].clip(upper=top), color=style.colour, linewidth=0.7)
        style.curve(axes, epsilon, rows["half"], rows["hollow"], size=3.2)
    _epsilon_axis(axes, sorted(points["epsilon"].unique()))
    _tokens_axis(axes, ends)
