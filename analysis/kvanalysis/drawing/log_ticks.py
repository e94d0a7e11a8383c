"""Plain numbers on logarithmic axes."""

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

MANY_DECADES = 2.5
DENSE, DECADES = (1, 2, 5), (1,)
LEAST_TICKS = 3  # two labels do not tell a logarithmic axis from a linear one
DENSER = ((1, 3), DENSE, (1, 2, 3, 5), (1, 1.5, 2, 3, 5, 7))


class _Ticks(LogLocator):
    """`subs` times powers of ten; the first of DENSER that gives LEAST_TICKS where they are too few."""

    def __init__(self, subs):
        super().__init__(subs=subs)
        self._choices = [subs, *(denser for denser in DENSER if len(denser) > len(subs))]

    def tick_values(self, vmin, vmax):
        for subs in self._choices:
            self.set_params(subs=subs)
            ticks = super().tick_values(vmin, vmax)
            shown = ticks[(ticks >= vmin) & (ticks <= vmax)]
            if len(shown) >= LEAST_TICKS and _are_multiples(shown, subs):
                break
        return ticks


def _are_multiples(ticks, subs):
    """Whether all are `subs` times powers of ten. Where an axis has one of those or none, LogLocator answers
    with even steps (before matplotlib 3.11)."""
    return all(np.isclose(tick / 10.0 ** np.floor(np.log10(tick) + 1e-9), subs).any() for tick in ticks)


def plain_log(axis, subs=DENSE):
    """Ticks at `subs` times powers of ten, as in 0.05, on a logarithmic xaxis or yaxis, and more where
    fewer than LEAST_TICKS fall on it; small ones between them, by which it is known as logarithmic."""
    axis.set_major_locator(_Ticks(subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
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
