"""Plain numbers on logarithmic axes."""

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

MANY_DECADES = 2.5


def plain_log(axis, values):
    """Labels 1, 2, 5, 10, ... where `values` span few decades, else powers of ten alone."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values) & (values > 0)]
    few = not len(values) or np.log10(values.max() / values.min()) < MANY_DECADES
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def ticks_at(axis, values):
    """One tick at each of `values`, and no other."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_minor_locator(NullLocator())
