"""An axis of losses: logarithmic, but linear around zero, because a lucky cache may have a negative loss."""

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ...drawing.style import DASHED

LINEAR = 0.02  # nats a token; smaller losses are noise, which a logarithm would spread out
STEPS = (1, 2, 5)
ZERO_COLOUR = "#555555"


def set_loss_axis(axes, losses):
    """The y axis: symmetric logarithm, ticks at plain numbers, a dashed line at zero."""
    losses = np.asarray(losses, dtype=float)
    axes.set_yscale("symlog", linthresh=LINEAR, linscale=0.4)
    low, high = min(0.0, losses.min()), max(losses.max(), 2 * LINEAR)
    axes.set_ylim(low * 1.3 - LINEAR / 3, high * 1.35)
    axes.yaxis.set_major_locator(FixedLocator(_ticks(*axes.get_ylim())))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.axhline(0, color=ZERO_COLOUR, linestyle=DASHED, linewidth=0.6, zorder=1)


def _ticks(low, high):
    """Zero, and powers of ten times STEPS from LINEAR on; fewer STEPS if the axis is long."""
    long = high > 60 * LINEAR or low < -60 * LINEAR
    steps = (1,) if high > 600 * LINEAR else (1, 5) if long else STEPS
    sizes = [step * 10.0**power for power in range(-2, 4) for step in steps]
    found = [0.0, *(size for size in sizes if size >= LINEAR), *(-size for size in sizes if size >= LINEAR)]
    return sorted(tick for tick in found if low <= tick <= high)
