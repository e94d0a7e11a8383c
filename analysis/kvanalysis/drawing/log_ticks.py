"""Plain numbers on logarithmic axes."""

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

MANY_DECADES = 2.5
DENSE, DECADES = (1, 2, 5), (1,)
LEAST_TICKS = 3  # two labels alone do not show that an axis is logarithmic
DENSER = ((1, 3), DENSE, (1, 2, 3, 5), (1, 1.5, 2, 3, 5, 7))


class _Ticks(LogLocator):
    """Ticks at `subs` times powers of ten; if they are too few, at the first of DENSER with LEAST_TICKS."""

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
    """Whether all are `subs` times powers of ten. If at most one such number is on an axis, LogLocator
    returns evenly spaced ticks instead (before matplotlib 3.11)."""
    return all(np.isclose(tick / 10.0 ** np.floor(np.log10(tick) + 1e-9), subs).any() for tick in ticks)


def plain_log(axis, subs=DENSE):
    """Sets ticks at `subs` times powers of ten, as in 0.05, on a logarithmic xaxis or yaxis, and more if
    fewer than LEAST_TICKS fall on it; small ticks between them show that it is logarithmic."""
    axis.set_major_locator(_Ticks(subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    axis.set_minor_formatter(NullFormatter())


def subs_for(values):
    """DENSE if `values` span few decades, else only powers of ten."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values) & (values > 0)]
    few = not len(values) or np.log10(values.max() / values.min()) < MANY_DECADES
    return DENSE if few else DECADES


def ticks_at(axis, values):
    """Sets one tick at each of `values`, and no other."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_minor_locator(NullLocator())
