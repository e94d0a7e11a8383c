"""TriAttention with common cuts (`level: head`, `level: union`): all heads hold equal tokens."""

import numpy as np

from .buffered import triattention_together
from .common import aggregate, top


def proposed(scores, m):
    """`union`: every query head proposes its top m; the m proposals with the largest maximum over all heads
    are kept, and the same maximum fills up. scores: [query heads of the model, candidates]."""
    largest = scores.max(axis=0)
    some = np.zeros(len(largest), dtype=bool)
    for own in scores:
        some[top(own, m)] = True
    taken = np.flatnonzero(some)
    best = taken[top(largest[taken], m)]
    if len(best) < m:
        rest = np.setdiff1d(np.arange(len(largest)), best)
        best = np.append(best, rest[top(largest[rest], m - len(best))])
    return np.sort(best)


def triattention(layers, B, level, group="max", **o):
    """A Result for each head of each layer; layers: [[Head]], equally many heads in each."""
    if level == "union":
        found = iter(triattention_together([h for same in layers for h in same], B, _union, **o))
        return [[next(found) for _ in same] for same in layers]

    def best(scores, count):
        return top(np.mean([aggregate(s, group) for s in scores], axis=0), count)

    of_head = [
        triattention_together([same[i] for same in layers], B, best, **o) for i in range(len(layers[0]))
    ]
    return [list(same) for same in zip(*of_head, strict=True)]


def _union(scores, count):
    return proposed(np.concatenate(scores), count)
