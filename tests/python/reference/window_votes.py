"""SnapKV with another window: the question (FINCH), or future rows (LAQ).

Sources: FINCH (TACL 2024, as kvpress's finch_press), Lookahead Q-Cache (arXiv 2505.20334).
"""

import numpy as np

from .common import causal_probs, dots, oneshot, softmax, top
from .tier2_scores import pooled


def finch_kept(head, B, window=32, chunks=1):
    """FINCH: window probabilities times the number of keys a row sees, averaged; each chunk keeps its
    share."""
    P = head.P
    if P <= B:
        return np.arange(P)
    if window >= B:
        return np.arange(P - B, P)
    prefix, room = P - window, B - window
    rows = causal_probs(head, P)[:, prefix:]
    seen = np.arange(prefix + 1, P + 1)
    scores = (rows * seen[None, :, None]).mean(axis=1).sum(axis=0)[:prefix]
    kept = []
    for c in range(chunks):
        first, last = c * prefix // chunks, (c + 1) * prefix // chunks
        count = last * room // prefix - first * room // prefix
        kept.extend(first + top(scores[first:last], count))
    return np.append(np.array(kept, dtype=int), np.arange(prefix, P))


def finch(head, B, positions="cache", **o):
    return oneshot(head, finch_kept(head, B, **o), positions=positions)


def laq(head, B, lookahead=8, kernel=7, pool="max"):
    """LAQ: votes of rows P..P+lookahead-1 over the prompt; only later rows are measured."""
    P = head.P
    kept = np.arange(P)
    if P > B:
        votes = causal_probs(head, P + lookahead)[:, P:, :P].sum(axis=(0, 1))
        kept = top(pooled(votes, kernel, pool), B)
    found = oneshot(head, kept)
    found.out = found.out[:, lookahead:]
    return found


def laq_generated(head, q, B, kernel=7, pool="max"):
    """Votes over the prompt of queries q [G, rows, d] that a separate pass generated."""
    votes = softmax(head.scale * dots(q, head.k[: head.P])).sum(axis=(0, 1))
    return oneshot(head, top(pooled(votes, kernel, pool), B))
