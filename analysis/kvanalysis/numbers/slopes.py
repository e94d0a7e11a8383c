"""Exponents: slopes of straight lines in log-log, one per head, with an interval over the heads."""

from dataclasses import dataclass

import pandas as pd

from .loglog import fit
from .stats import UNIT, mean_interval


@dataclass(frozen=True)
class Exponent:
    """Mean slope over `n_units` heads and its 95 % bootstrap interval (NaN below two heads)."""

    mean: float
    low: float
    high: float
    n_units: int

    def contains(self, value):
        return self.low <= value <= self.high

    def text(self):
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] over {self.n_units} heads"


def unit_slopes(rows, x, y, unit=UNIT):
    """Series by head: slope of column `y` against column `x`; heads without a slope are left out."""
    found = {key: fit(group[x], group[y])[0] for key, group in rows.groupby(list(unit), sort=True)}
    return pd.Series(found, dtype=float).dropna()


def exponent(slopes):
    """The Exponent of `unit_slopes`."""
    return Exponent(*mean_interval(slopes.to_numpy()), len(slopes))
