"""Row formats calibrated on the prompt rows of a kv head: KVQuant and principal components."""

import numpy as np

from .row_codes import finite, float16, ratio
from .row_rotations import gauss_levels, nearest

KMEANS_SWEEPS = 50


def lower_nearest(z: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Codes of the nearest levels; a number on a midpoint takes the lower level."""
    return np.searchsorted((levels[:-1] + levels[1:]) / 2, z, side="left")


def kmeans_line(z: np.ndarray, bits: int) -> np.ndarray:
    """k-means of the numbers z [m], started at their quantiles; a level without numbers does not move."""
    if len(z) == 0:
        return np.zeros(2**bits)
    levels = np.quantile(z, (np.arange(2**bits) + 0.5) / 2**bits)
    for _ in range(KMEANS_SWEEPS):
        code = lower_nearest(z, levels)
        count = np.bincount(code, minlength=len(levels))
        moved = np.where(count > 0, ratio(np.bincount(code, z, len(levels)), count), levels)
        if np.array_equal(moved, levels):
            break
        levels = moved
    return levels


class KVQuant:
    """KVQuant: non-uniform levels, keys scaled by channel, values by row, outliers in float16.

    A number outside the quantiles 1 - t and t (t = 1 - outliers/200) is an outlier. For keys the quantiles
    are those of the channel over the prompt rows. For values they are those of the row, and a number equal to
    a quantile is an outlier, too. `outliers: 0` stores none.
    """

    def __init__(
        self, part: str, prompt: np.ndarray, bits: int = 4, outliers: float = 1, calibrate_from: int = 4
    ):
        self.part, self.outliers = part, outliers
        rows = finite(prompt)[calibrate_from:]
        self.high, self.low = self.quantiles(rows, axis=0)
        z, out, _, _ = self.scaled(rows)
        self.levels = kmeans_line(z[~out], bits)

    def quantiles(self, x: np.ndarray, axis: int) -> np.ndarray:
        t = 1 - self.outliers / 200
        return np.quantile(x, [t, 1 - t], axis=axis, keepdims=True)

    def scaled(self, x: np.ndarray):
        """z [m, d], the mask of outliers, and the offsets and half widths, by channel or by row."""
        if self.part == "key":
            high, low = self.high, self.low
            out = (x > high) | (x < low)
        else:
            high, low = self.quantiles(x, axis=1)
            out = (x >= high) | (x <= low)
        out = out & (self.outliers > 0)
        if self.part == "value":
            inner = np.where(out, np.median(x, axis=1, keepdims=True), x)
            high, low = inner.max(axis=1, keepdims=True), inner.min(axis=1, keepdims=True)
        offset, half = (high + low) / 2, (high - low) / 2
        return ratio(x - offset, half), out, offset, half

    def read(self, x: np.ndarray) -> np.ndarray:
        z, out, offset, half = self.scaled(finite(x))
        coded = float16(self.levels)[lower_nearest(z, self.levels)] * float16(half) + float16(offset)
        return np.where(out, float16(x), coded)

    def outliers_of(self, x: np.ndarray) -> np.ndarray:
        """Number of outliers of each row: [m]."""
        return self.scaled(x)[1].sum(axis=1)


# Remaining error of a variance of 1, by number of bits.
DISTORTION = (1.0, 0.3634, 0.1175, 0.03455, 0.009501, 0.002505)


def allocate(variance: np.ndarray, bits: int) -> np.ndarray:
    """Bits of each component: each bit goes where it lowers the error most; at most 5, ties to the first."""
    given = np.zeros(len(variance), dtype=int)
    gain = np.append(-np.diff(DISTORTION), 0.0)
    for _ in range(bits):
        best = np.where(given < len(DISTORTION) - 1, variance * gain[given], -np.inf)
        given[np.argmax(best)] += 1
    return given


class Pca:
    """The prompt's principal components at Gaussian levels, bits by variance; 0 bits store only the mean."""

    def __init__(self, prompt: np.ndarray, bits: float = 2, calibrate_from: int = 4):
        rows = finite(prompt)[calibrate_from:]
        self.mean = rows.mean(axis=0)
        centred = rows - self.mean
        variance, basis = np.linalg.eigh(centred.T @ centred / len(rows))
        self.variance, self.basis = np.maximum(variance[::-1], 0.0), basis[:, ::-1]
        self.bits = allocate(self.variance, int(bits * prompt.shape[1]))

    def read(self, x: np.ndarray) -> np.ndarray:
        y = (finite(x) - self.mean) @ self.basis
        spread = np.sqrt(self.variance)
        coded = np.zeros_like(y)
        for c, bits in enumerate(self.bits):
            if bits and spread[c] > 0:
                coded[:, c] = nearest(y[:, c] / spread[c], gauss_levels(int(bits))) * spread[c]
        return coded @ self.basis.T + self.mean
