"""Logarithmic axes whose ticks are plain numbers."""

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

DENSE = (1, 2, 5)


def plain_log(axis, subs=DENSE):
    """Ticks at `subs` times powers of ten, as in 0.05, on a logarithmic xaxis or yaxis."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
