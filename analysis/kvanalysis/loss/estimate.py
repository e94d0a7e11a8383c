"""The KL divergence that errors of attention outputs cause, from their products with a recorded gradient.

a_s(t) is the sum over layers and query heads of <g_s, z - o> at row t, s a sample of labels drawn from the
model's own prediction. To second order the divergence, summed over the rows, is half the mean over s of the
squared sum of a_s over all rows (Fisher information). Squares of single rows are its largest part by far and
their sum has little noise; pairs of rows add to it, and to the noise.
"""

import numpy as np
from scipy import stats

BLOCK_ROWS = 16
LEVEL = 0.95


def by_row(a):
    """Nats a token, a [rows, S]: pairs of rows left out."""
    return by_blocks(a, 1)


def by_blocks(a, rows=BLOCK_ROWS):
    """Nats a token: pairs of rows of one block of `rows` count."""
    starts = np.arange(0, len(a), rows)
    sums = np.add.reduceat(np.asarray(a, dtype=float), starts, axis=0)
    return float((sums**2).mean(axis=1).sum() / 2 / len(a))


def whole(a):
    """Nats a token: all pairs. Unbiased, with a relative standard deviation of sqrt(2 / S)."""
    return by_blocks(a, len(a))


def label_noise(a):
    """Standard error of ln by_row(a) that comes of the labels; NaN of one sample or of no error at all."""
    squares = (np.asarray(a, dtype=float) ** 2).sum(axis=0)
    if len(squares) < 2 or not squares.any():
        return np.nan
    return float(squares.std(ddof=1) / np.sqrt(len(squares)) / squares.mean())


def interval(value, *log_errors):
    """(low, high) of LEVEL around a value whose logarithm has these independent errors: (standard error,
    degrees of freedom that it was estimated with), which may be few (Student's t) or infinite."""
    widths = [error * stats.t.ppf((1 + LEVEL) / 2, freedom) for error, freedom in log_errors]
    width = np.sqrt(np.sum(np.square(widths)))
    return value * np.exp(-width), value * np.exp(width)
