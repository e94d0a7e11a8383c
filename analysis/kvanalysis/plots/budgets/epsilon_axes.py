"""The axes of a budget that an epsilon needs: both logarithmic."""

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from ...drawing.log_ticks import LEAST_TICKS, plain_log, ticks_at

SIDE_STEP, MARGIN = 1.018, 1.15  # factors on epsilon between labels, and on tokens beyond what is drawn


def aside(number, labels):
    """A factor on the epsilons of one of the labels, so that their intervals stand beside each other."""
    return SIDE_STEP ** (number - (labels - 1) / 2)


def epsilon_axis(axes, epsilons):
    """Across, a tick at each epsilon."""
    axes.set(xscale="log", xlabel="epsilon: error not to be exceeded [1]")
    ticks_at(axes.xaxis, epsilons)


def tokens_axis(axes, budgets):
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
