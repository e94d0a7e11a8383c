"""The nondecreasing curve nearest to given points."""

import numpy as np


def isotonic(x, y):
    """[n] the nondecreasing function of `x` with least squared distance to `y`, at the points; equal x share
    one value. Pools neighbours that are out of order into their mean."""
    places, own = np.unique(np.asarray(x, dtype=float), return_inverse=True)
    counts = np.bincount(own, minlength=len(places))
    means = np.bincount(own, weights=np.asarray(y, dtype=float), minlength=len(places)) / counts
    pools = []  # [mean, points, places]
    for mean, count in zip(means, counts, strict=True):
        pools.append([mean, count, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, a, n), (high, b, m) = pools[-2:]
            pools[-2:] = [[(low * a + high * b) / (a + b), a + b, n + m]]
    return np.repeat([mean for mean, _, _ in pools], [n for _, _, n in pools])[own]
