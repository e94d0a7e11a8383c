"""Exponents: slopes of straight lines in log-log, one per head, with an interval over the heads."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

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


def slope(x, y):
    """Least-squares slope of ln y against ln x; NaN below two different positive points."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    good = (x > 0) & (y > 0)
    if len(np.unique(x[good])) < 2:
        return np.nan
    return float(np.polyfit(np.log(x[good]), np.log(y[good]), 1)[0])


def unit_slopes(rows, x, y, unit=UNIT):
    """Series by head: slope of column `y` against column `x`; heads without a slope are left out."""
    found = {key: slope(group[x], group[y]) for key, group in rows.groupby(list(unit), sort=True)}
    return pd.Series(found, dtype=float).dropna()


def exponent(slopes):
    """The Exponent of `unit_slopes`."""
    return Exponent(*mean_interval(slopes.to_numpy()), len(slopes))
