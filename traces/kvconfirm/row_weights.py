"""From lists to weights: what each decode row of a layer attends to."""

from dataclasses import dataclass

import numpy as np


@dataclass
class LayerRows:
    """Weights of one layer's rows: o = sum num exp(l) v / sum den exp(l).

    `num`, `den` [S, R, T] float32, 0 where a row does not attend; the same array where they are equal. S
    series: one for each kv head, or one for each query head. `moved` [S, R, T] int32: by how many positions a
    key is rotated forward, or None.
    """

    num: np.ndarray
    den: np.ndarray
    moved: np.ndarray | None = None

    @property
    def plain(self):
        """True where a mask and a bias say all."""
        return self.num is self.den and self.moved is None


@dataclass
class Weights:
    """num, den [R, T] float32 of one series, the same array where they are equal; `held` [R, T] float32: 1
    where a token has a row in the cache, whatever its weights."""

    num: np.ndarray
    den: np.ndarray
    held: np.ndarray


def weigh(series, kind, prefill, tokens, window=0):
    """Weights of one Series (`kind`: see kept_lists.Lists). `window` w > 0: row t sees nothing before token
    t - w + 1."""

    def table(weights):
        return _table(series, weights, kind, prefill, tokens, window)

    held = table(None)
    num, den = (held if w is None or (w == 1).all() else table(w) for w in (series.num, series.den))
    same = num is den or np.array_equal(series.num, series.den)
    return Weights(num, num if same else den, held)


def _table(series, weights, kind, prefill, tokens, window):
    """[R, T] float32: weights (None: 1) of the listed tokens, and 1 of those that joined after the prompt."""
    rows = tokens - prefill
    own = np.arange(rows)
    found = np.zeros((rows, tokens), dtype=np.float32)
    if kind == "oneshot":
        found[:, series.tokens] = 1 if weights is None else weights
        found[:, prefill:] = np.tri(rows, dtype=np.float32)
    else:
        last = series.off[min(rows, len(series))]
        row = np.repeat(np.arange(len(series)), np.diff(series.off))[:last]
        found.reshape(-1)[row * tokens + series.tokens[:last]] = 1 if weights is None else weights[:last]
    if kind == "before":
        found[own, prefill + own] = 1
    if window:
        found[np.arange(tokens)[None, :] <= (prefill + own - window)[:, None]] = 0
    return found


def stack(each):
    """num, den [S, R, T] of the series' Weights; one array where all of them are equal."""
    num = np.stack([one.num for one in each])
    if all(one.num is one.den for one in each):
        return num, num
    return num, np.stack([one.den for one in each])


def moves(held, prefill, positions):
    """[R, T] int32: how far the j-th row of each step's cache is rotated forward to stand at position j
    (convention C14): D = (t - position) - (L - 1 - j), with the step's own position for t."""
    held = held != 0
    rank = np.cumsum(held, axis=1) - 1
    last = rank[:, -1:]
    t = np.asarray(positions)[prefill:, None]
    moved = (t - np.asarray(positions)[None, :]) - (last - rank)
    return np.where(held, moved, 0).astype(np.int32)
