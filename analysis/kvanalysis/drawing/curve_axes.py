"""An axis of a sheet of curves: label, scale, ticks, levels."""

from dataclasses import dataclass, field

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .budget_axes import set_budget_axis, set_error_axis

ERROR = "mean rel. error"


@dataclass(frozen=True)
class Axis:
    """`scale`: linear (y from zero), log, budget (powers of two, ticks at the values) or error (log if the
    values span a large ratio). `ticks`: {value: text}. `levels`: {text: value}, dashed lines that are not
    data."""

    label: str
    scale: str = "linear"
    ticks: dict = field(default_factory=dict)
    levels: dict = field(default_factory=dict)
    limits: tuple = ()


def set_axis(axes, name, axis, values, width):
    """Sets scale, ticks and limits of an axis; `values`: all values drawn on it; `width`: inches."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    scale = {"x": axes.set_xscale, "y": axes.set_yscale}[name]
    if axis.scale == "budget":
        set_budget_axis(axes, sorted(set(values)), width)
    elif axis.scale == "error":
        set_error_axis(axes, values[values > 0])
    elif axis.scale == "log":
        scale("log")
    elif name == "y":
        axes.set_ylim(bottom=0)
    if axis.ticks:
        ticks = {"x": axes.xaxis, "y": axes.yaxis}[name]
        ticks.set_major_locator(FixedLocator(list(axis.ticks)))
        ticks.set_minor_locator(NullLocator())
        ticks.set_major_formatter(FuncFormatter(lambda value, _: axis.ticks.get(value, f"{value:g}")))
    if axis.limits:
        {"x": axes.set_xlim, "y": axes.set_ylim}[name](*axis.limits)
