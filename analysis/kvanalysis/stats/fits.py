"""Power laws, fitted head by head, and the nondecreasing curve nearest to given points."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import UNIT, mean_interval, unit_means
from .words import count


@dataclass(frozen=True)
class Slope:
    """Mean over units of the least-squares exponent, 95 % interval over layers (NaN: too few layers)."""

    value: float
    low: float
    high: float
    n_units: int

    def text(self):
        interval = "" if np.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"

    def over_heads(self):
        return f"{self.text()} over {count(self.n_units, 'head')}"


def fit(x, y):
    """The exponent of y over x by least squares on logarithms; NaN with fewer than two different x.

    Points that are not positive and finite are left out.
    """
    x, y = (np.asarray(values, dtype=float) for values in (x, y))
    good = (x > 0) & (y > 0) & np.isfinite(x) & np.isfinite(y)
    x, y = np.log(x[good]), np.log(y[good])
    if len(x) < 2 or np.ptp(x) == 0:
        return np.nan
    dx = x - x.mean()
    return float(dx @ (y - y.mean()) / (dx @ dx))


def slope(rows, x, y, by=None):
    """The Slope of column `y` against column `x` of one label's rows; None if no unit has two points.

    Seeds are averaged first, among rows with equal `by`: the column that was swept, by default `x`. A
    measured `x` is averaged with them.
    """
    by = by or x
    means = unit_means(rows.dropna(subset=[x, y]), [y] if by == x else [x, y], [by]).reset_index()
    units = means.groupby(UNIT, sort=True)
    fits = {unit: power for unit, own in units if np.isfinite(power := fit(own[x], own[y]))}
    if not fits:
        return None
    return Slope(*mean_interval(pd.Series(fits).rename_axis(UNIT)), len(fits))


def isotonic(x, y):
    """[n] the nondecreasing function of `x` with the smallest squared distance to `y`, at the points; equal x
    share one value. Neighbours that are out of order are pooled into their mean."""
    places, own = np.unique(np.asarray(x, dtype=float), return_inverse=True)
    counts = np.bincount(own, minlength=len(places))
    means = np.bincount(own, weights=np.asarray(y, dtype=float), minlength=len(places)) / counts
    pools = []  # [mean, points, places]
    for mean, points in zip(means, counts, strict=True):
        pools.append([mean, points, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, a, n), (high, b, m) = pools[-2:]
            pools[-2:] = [[(low * a + high * b) / (a + b), a + b, n + m]]
    return np.repeat([mean for mean, _, _ in pools], [n for _, _, n in pools])[own]
