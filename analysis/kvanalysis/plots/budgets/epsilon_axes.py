"""The axes of a budget that an epsilon needs: both logarithmic."""

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from ...drawing.log_ticks import LEAST_TICKS, plain_log, ticks_at

SIDE_STEP, MARGIN = 1.018, 1.15  # factors on epsilon between labels, and on tokens beyond what is drawn
NEEDED = (
    "Needed: the smallest replayed budget from which on every larger one meets epsilon, seeds averaged first."
)
RULE = (
    f"{NEEDED} Curves: for half of the heads; bars: for a quarter and for three quarters of them. Hollow: the"
    " smallest budget that was tried. A curve ends where no budget suffices for half of the heads; a bar that"
    " leaves the axes at the top has no end."
)


def _epsilon_axis(axes, epsilons):
    """Across, a tick at each epsilon."""
    axes.set(xscale="log", xlabel="epsilon: error not to be exceeded [1]")
    ticks_at(axes.xaxis, epsilons)


def _tokens_axis(axes, budgets):
    """Upwards, as far as `budgets` reach; says so if there are none."""
    axes.set(ylabel="budget needed [tokens]")
    if not len(budgets):
        axes.text(0.5, 0.5, "no budget that was run suffices", transform=axes.transAxes, ha="center")
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
    """A curve for each label of `points`, as budgets.search.over_heads makes them."""
    shown = points[np.isfinite(points["half"])]
    shown = shown.assign(hollow=2 * shown["at_smallest"] >= shown["heads"])
    ends = shown[["quarter", "half", "most"]].to_numpy()
    ends = ends[np.isfinite(ends)]
    top = ends.max() * MARGIN if len(ends) else 1.0
    for number, (label, style) in enumerate(styles.items()):
        rows = shown[shown["label"] == label]
        # Bars of labels stand beside each other.
        epsilon = rows["epsilon"] * SIDE_STEP ** (number - (len(styles) - 1) / 2)
        axes.vlines(epsilon, rows["quarter"], rows["most"].clip(upper=top), color=style.colour, linewidth=0.7)
        style.curve(axes, epsilon, rows["half"], rows["hollow"], size=3.2)
    _epsilon_axis(axes, sorted(points["epsilon"].unique()))
    _tokens_axis(axes, ends)
