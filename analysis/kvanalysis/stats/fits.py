"""Power laws, head by head, and the nondecreasing curve nearest to given points."""

from dataclasses import dataclass

import numpy as np

from .intervals import UNIT, mean_interval, unit_means
from .words import count


@dataclass(frozen=True)
class Slope:
    """Mean over units of the least-squares exponent, 95 % bootstrap over units (NaN below two units).

    `r2`: mean share of the variance of ln y that the lines explain; `factor`: y = factor * x^value through
    the means of the logarithms of all units.
    """

    value: float
    low: float
    high: float
    r2: float
    factor: float
    n_units: int

    def text(self):
        interval = "" if np.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"

    def over_heads(self):
        return f"{self.text()} over {count(self.n_units, 'head')}"


def fit(x, y):
    """(exponent, R^2) of y over x by least squares on logarithms; NaN, NaN below two different x.

    Points that are not positive and finite are left out. A constant y has exponent 0 and R^2 = 1.
    """
    x, y = (np.asarray(values, dtype=float) for values in (x, y))
    good = (x > 0) & (y > 0) & np.isfinite(x) & np.isfinite(y)
    x, y = np.log(x[good]), np.log(y[good])
    if len(x) < 2 or np.ptp(x) == 0:
        return np.nan, np.nan
    dx, dy = x - x.mean(), y - y.mean()
    value = dx @ dy / (dx @ dx)
    left, all_of_it = ((dy - value * dx) ** 2).sum(), (dy**2).sum()
    return float(value), float(1 - left / all_of_it) if all_of_it > 0 else 1.0


def slope(rows, x, y, by=None):
    """The Slope of column `y` against column `x` of one label's rows; None if no unit has two points.

    Seeds are averaged first, among rows with the same `by`: the column that was swept, `x` if it is not
    given. A measured `x` is averaged with them.
    """
    by = by or x
    means = unit_means(rows.dropna(subset=[x, y]), [y] if by == x else [x, y], [by]).reset_index()
    found = [fit(unit[x], unit[y]) for _, unit in means.groupby(UNIT, sort=True)]
    found = np.array([pair for pair in found if np.isfinite(pair[0])])
    if not len(found):
        return None
    value, low, high = mean_interval(found[:, 0])
    good = means[(means[x] > 0) & (means[y] > 0)]
    factor = np.exp((np.log(good[y]) - value * np.log(good[x].astype(float))).mean())
    return Slope(value, low, high, float(found[:, 1].mean()), float(factor), len(found))


def isotonic(x, y):
    """[n] the nondecreasing function of `x` with least squared distance to `y`, at the points; equal x share
    one value. Pools neighbours that are out of order into their mean."""
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
