"""Scissorhands: evicts tokens that are seldom above the row's average."""

import numpy as np

from .common import Result, aggregate, causal_probs, replay, top


def scissorhands(head, B, seed=0, hist=400, recent=10, drop=None, variant="default"):
    """Drops the tokens with the most "low" marks in the last `hist` rows; ties drop the higher index."""
    if variant == "authors_code":
        return authors_code(head)
    drop = max(1, min(B // 2, B - recent)) if drop is None else drop
    low = np.zeros((head.n, head.n), dtype=bool)
    width = np.arange(1, head.P + 1)[:, None]
    x = aggregate(causal_probs(head, head.P))
    low[: head.P, : head.P] = (x < head.G / width) & np.tril(np.ones((head.P, head.P), dtype=bool))

    def cut(t, live, leaving):
        rows = np.arange(max(0, t + 1 - hist), t + 1)
        marks = low[np.ix_(rows, live)].sum(axis=0).astype(float)
        if variant == "fraction":
            marks /= (rows[:, None] >= live).sum(axis=0)
        old = len(live) - recent
        return np.append(live[top(-marks[:old], old - leaving)], live[old:])

    def evict(t, live, p):
        low[t, live] = aggregate(p) < head.G / len(live)
        return cut(t, live, drop) if len(live) > B else live

    start = np.arange(head.P)
    kept, out = replay(head, cut(head.P - 1, start, head.P - B) if head.P > B else start, evict)
    return Result(kept, out)


def authors_code(head, hist=100, recent=10, first=100):
    """The released rule: keeps a token iff in one of the last 100 rows it exceeded that row's 0.9 quantile.

    Our reading: a prompt row is stored with width P (zeros for the future), a decode row with width |C_t|.
    """
    above = np.zeros((head.n, head.n), dtype=bool)
    for i, row in enumerate(aggregate(causal_probs(head, head.P))):
        above[i, : head.P] = row > np.sort(row)[int(0.9 * head.P)]

    def cut(t, live):
        if t < first:
            return live
        stays = above[max(0, t + 1 - hist) : t + 1, live].any(axis=0)
        stays[len(live) - recent :] = True
        return live[stays]

    def evict(t, live, p):
        row = aggregate(p)
        above[t, live] = row > np.sort(row)[int(0.9 * len(live))]
        return cut(t, live)

    kept, out = replay(head, cut(head.P - 1, np.arange(head.P)), evict)
    return Result(kept, out)
