"""Turns lists of tokens into the weights with which each decode row of a layer attends."""

from dataclasses import dataclass

import numpy as np


@dataclass
class LayerRows:
    """Weights of one layer's rows: o = sum num exp(l) v / sum den exp(l).

    `num`, `den` [S, R, T] float32, 0 for tokens that a row does not attend to; one array if they are equal. S
    series: one per kv head, or one per query head. `moved` [S, R, T] int32: by how many positions a key is
    rotated forward, or None.
    """

    num: np.ndarray
    den: np.ndarray
    moved: np.ndarray | None = None

    @property
    def plain(self):
        """True if an additive mask expresses these weights."""
        return self.num is self.den and self.moved is None


@dataclass
class Weights:
    """num, den [R, T] float32 of one series, one array if they are equal; `held` [R, T] float32: 1 for tokens
    in the cache, independent of their weights."""

    num: np.ndarray
    den: np.ndarray
    held: np.ndarray


def first_seen(rows, window=0, chunk=0):
    """The first token that each of `rows` (an array of tokens) sees in a layer with a sliding window or with
    chunks of that many tokens; 0 for neither."""
    if window:
        return rows - window + 1
    return rows - rows % chunk if chunk else rows * 0


def weigh(series, kind, prefill, tokens, window=0, chunk=0):
    """Weights of one Series (`kind`: see kept_lists.Lists). `window` and `chunk`: see first_seen."""

    def table(weights):
        found = _table(series, weights, kind, prefill, tokens)
        first = first_seen(np.arange(prefill, tokens), window, chunk)
        found[np.arange(tokens)[None, :] < first[:, None]] = 0
        return found

    held = table(None)
    num, den = (held if w is None or (w == 1).all() else table(w) for w in (series.num, series.den))
    same = num is den or np.array_equal(series.num, series.den)
    return Weights(num, num if same else den, held)


def _table(series, weights, kind, prefill, tokens):
    """[R, T] float32: `weights` (None: 1) for the listed tokens, and 1 for tokens added after the prompt."""
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
    return found


def stack(each):
    """num, den [S, R, T] from the series' Weights; one array if they are equal in all series."""
    num = np.stack([one.num for one in each])
    if all(one.num is one.den for one in each):
        return num, num
    return num, np.stack([one.den for one in each])


def moves(held, prefill, positions):
    """[R, T] int32: by how many positions the j-th row of each step's cache is rotated forward so that it has
    position j (convention C14): D = (t - position) - (L - 1 - j), where t is the step's position and L the
    number of rows."""
    held = held != 0
    rank = np.cumsum(held, axis=1) - 1
    last = rank[:, -1:]
    t = np.asarray(positions)[prefill:, None]
    moved = (t - np.asarray(positions)[None, :]) - (last - rank)
    return np.where(held, moved, 0).astype(np.int32)
