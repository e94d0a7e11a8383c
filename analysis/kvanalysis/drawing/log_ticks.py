"""Plain numbers on logarithmic axes."""

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

MANY_DECADES = 2.5
DENSE, DECADES = (1, 2, 5), (1,)


def plain_log(axis, subs=DENSE):
    """Ticks at `subs` times powers of ten, as in 0.05, on a logarithmic xaxis or yaxis."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def subs_for(values):
    """DENSE where `values` span few decades, else powers of ten alone."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values) & (values > 0)]
    few = not len(values) or np.log10(values.max() / values.min()) < MANY_DECADES
    return DENSE if few else DECADES


def ticks_at(axis, values):
    """One tick at each of `values`, and no other."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_minor_locator(NullLocator())
