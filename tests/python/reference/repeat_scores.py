"""KVzip and KVzip+: scores from a second pass, in which the model repeats its context.

Sources: KVzip (arXiv 2505.23416), KVzip+ in kvpress. A score is a context token's largest attention
probability in any row of the repeat pass; KVzip+ weights it by the norm of the token's projected value per
unit of the row's input.
"""

from dataclasses import dataclass

import numpy as np

from .common import dots, oneshot, softmax, top


@dataclass
class Repeat:
    """The second pass of one kv head: rows[c]..rows[c+1]-1 repeat context tokens ctx[c]..ctx[c+1]-1."""

    q: np.ndarray  # [G, R, d]
    k: np.ndarray  # [R, d]
    rows: tuple
    ctx: tuple
    in_norm: np.ndarray | None = None  # [R], L2 norm of the input of the query projection


def chunk_probabilities(head, repeat, c, sinks=4):
    """(context tokens, probabilities [G, rows of chunk c, context tokens]). A row sees sinks, chunk, repeat
    rows."""
    first, last = repeat.ctx[c], repeat.ctx[c + 1]
    own = slice(repeat.rows[c], repeat.rows[c + 1])
    context = np.append(np.arange(min(sinks, first)), np.arange(first, last))
    keys = np.concatenate([head.k[context], repeat.k[own]])
    logits = head.scale * dots(repeat.q[:, own], keys)
    count = own.stop - own.start
    seen = np.concatenate(
        [np.ones((count, len(context)), dtype=bool), np.tril(np.ones((count, count), dtype=bool))], axis=1
    )
    return context, softmax(np.where(seen, logits, -np.inf))[:, :, : len(context)]


def kvzip_scores(head, repeat, sinks=4, plus=False):
    """[P]: every token's largest probability over rows and heads, in the chunk that repeats it.

    Later chunks see the sinks besides their own tokens; their attention to the sinks does not count.
    """
    scores = np.zeros(head.P)
    for c in range(len(repeat.rows) - 1):
        context, p = chunk_probabilities(head, repeat, c, sinks)
        if plus:
            value = np.stack([np.linalg.norm(head.v[context] @ W, axis=1) for W in head.o_proj])
            own = slice(repeat.rows[c], repeat.rows[c + 1])
            p = p * value[:, None, :] / repeat.in_norm[own][None, :, None]
        repeated = slice(repeat.ctx[c], repeat.ctx[c + 1])
        scores[repeated] = p.max(axis=(0, 1))[-(repeated.stop - repeated.start) :]
    return scores


def kvzip(layers, repeats, B, level="uniform", sinks=4, recent=0, plus=False):
    """KVzip: one list of results per layer. `layer` and `pair` share B per head over a layer or over all
    heads."""
    P = layers[0][0].P
    held = (np.arange(P) < sinks) | (np.arange(P) >= P - recent)
    scores = [
        np.stack([kvzip_scores(h, r, sinks, plus) for h, r in zip(heads, own, strict=True)])
        for heads, own in zip(layers, repeats, strict=True)
    ]
    if P <= B:
        return [[oneshot(h, np.arange(P)) for h in heads] for heads in layers]
    groups = {
        "uniform": [s[None, i] for s in scores for i in range(len(s))],
        "layer": scores,
        "pair": [np.concatenate(scores)],
    }[level]
    kept = []
    for s in groups:
        flat = top(np.where(held, np.inf, s).ravel(), B * len(s))
        kept += [flat[flat // P == i] % P for i in range(len(s))]
    sets = iter(kept)
    return [[oneshot(h, next(sets)) for h in heads] for heads in layers]


def by_head(shares, P, total, least):
    """Level `head`: in descending order of their share, heads keep all P tokens until the total is spent.

    A remainder too small for a whole head stays unspent; the other heads keep `least` tokens.
    """
    shares = np.asarray(shares, dtype=float)
    budgets = np.full(len(shares), least)
    for i in np.argsort(-shares, kind="stable"):
        if budgets.sum() + P - least > total:
            break
        budgets[i] = P
    return budgets
