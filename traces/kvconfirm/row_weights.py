"""From lists to weights: what each decode row of a layer attends to."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class LayerRows:
    """Weights of one layer's rows: o = sum num exp(l) v / sum den exp(l).

    `num`, `den` [S, R, T] float32, 0 where a row does not attend; the same array where they are equal. S
    series: one for each kv head, or one for each query head. `codings`: one RowCoding a series, or none.
    `moved` [S, R, T] int32: by how many positions a key is rotated forward, or None.
    """

    num: np.ndarray
    den: np.ndarray
    codings: list = field(default_factory=list)
    moved: np.ndarray | None = None

    @property
    def plain(self):
        """True where a mask and a bias say all."""
        return self.num is self.den and not self.codings and self.moved is None


def weigh(series, kind, prefill, tokens, window=0):
    """num, den [R, T] float32 of one Series (`kind`: see kept_lists.Lists); den is num where they are equal.

    `window` w > 0: row t sees nothing before token t - w + 1.
    """
    rows = tokens - prefill
    own = np.arange(rows)
    if kind == "oneshot":
        row = np.repeat(own, len(series.tokens))
        column = np.tile(series.tokens, rows)
        weights = [None if w is None else np.tile(w, rows) for w in (series.num, series.den)]
    else:
        row = np.repeat(np.arange(len(series)), np.diff(series.off))
        inside = row < rows
        row, column = row[inside], series.tokens[inside]
        weights = [None if w is None else w[inside] for w in (series.num, series.den)]
    num, den = (_scatter(row, column, w, rows, tokens) for w in weights)
    for table in (num, den):
        if kind == "oneshot":
            table[:, prefill:] = np.tri(rows, dtype=np.float32)
        elif kind == "before":
            table[own, prefill + own] = 1
        if window:
            table[np.arange(tokens)[None, :] <= (prefill + own - window)[:, None]] = 0
    return (num, num) if np.array_equal(num, den) else (num, den)


def _scatter(row, column, weights, rows, tokens):
    table = np.zeros((rows, tokens), dtype=np.float32)
    table[row, column] = 1 if weights is None else weights
    return table


def stack(pairs):
    """num, den [S, R, T] of the series' pairs; one array where all of them are equal."""
    num = np.stack([pair[0] for pair in pairs])
    if all(pair[0] is pair[1] for pair in pairs):
        return num, num
    return num, np.stack([pair[1] for pair in pairs])


def moves(num, den, prefill, positions):
    """[R, T] int32: how far the j-th attended token of each row is rotated forward to stand at position j
    (convention C14): D = (t - position) - (L - 1 - j), with the row's own position for t."""
    shown = (num != 0) | (den != 0)
    rank = np.cumsum(shown, axis=1) - 1
    last = rank[:, -1:]
    t = np.asarray(positions)[prefill:, None]
    moved = (t - np.asarray(positions)[None, :]) - (last - rank)
    return np.where(shown, moved, 0).astype(np.int32)
