"""The KL divergence that errors of attention outputs cause, from their products with a recorded gradient.

a_s(t) is the sum over layers and query heads of <g_s, z - o> at row t, where s is a sample of labels drawn
from the model's own prediction. To second order the divergence, summed over the rows, is half the mean over s
of the squared sum of a_s over all rows (Fisher information). The squares of single rows are by far its
largest part and their sum has little noise; pairs of rows add to the value, and to the noise.
"""

import numpy as np
from scipy import stats

BLOCK_ROWS = 16
LEVEL = 0.95


def by_row(a):
    """Nats a token from a [rows, S], without pairs of rows."""
    return by_blocks(a, 1)


def by_blocks(a, rows=BLOCK_ROWS):
    """Nats a token, with pairs of rows within blocks of `rows` rows."""
    starts = np.arange(0, len(a), rows)
    sums = np.add.reduceat(np.asarray(a, dtype=float), starts, axis=0)
    return float((sums**2).mean(axis=1).sum() / 2 / len(a))


def whole(a):
    """Nats a token, with all pairs. Unbiased, with a relative standard deviation of sqrt(2 / S)."""
    return by_blocks(a, len(a))


def label_noise(a):
    """Standard error of ln by_row(a) due to the random labels; NaN with one sample or without any error."""
    squares = (np.asarray(a, dtype=float) ** 2).sum(axis=0)
    if len(squares) < 2 or not squares.any():
        return np.nan
    return float(squares.std(ddof=1) / np.sqrt(len(squares)) / squares.mean())


def interval(value, *log_errors):
    """(low, high) at LEVEL around a value whose logarithm has these independent errors: pairs (standard
    error, degrees of freedom of its estimate), which may be few (Student's t) or infinite."""
    widths = [error * stats.t.ppf((1 + LEVEL) / 2, freedom) for error, freedom in log_errors]
    width = np.sqrt(np.sum(np.square(widths)))
    return value * np.exp(-width), value * np.exp(width)
