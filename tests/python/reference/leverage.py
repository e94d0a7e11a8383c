"""Scores from the geometry of keys, values and queries: Compactor, CapKV and Q-Filters.

Sources: Compactor (arXiv 2507.08143), CapKV (arXiv 2604.25975), Q-Filters (arXiv 2503.02812). Scores have no
unit.
"""

import numpy as np

from .buffered import pairs_and_rest, unrotated_pairs
from .common import Result, head_uniform, oneshot, replay, softmax, top
from .tier2_scores import dots as rowwise
from .tier2_scores import ends, mean_rotation, norms, pooled

# --- Positions and draws ----------------------------------------------------------------------------


def from_pairs(z, rest, rope):
    """The inverse of pairs_and_rest."""
    F = z.shape[-1]
    out = np.empty((*z.shape[:-1], 2 * F + rest.shape[-1]))
    half = F == 0 or rope.layout == "half_split"
    out[..., slice(0, F) if half else slice(0, 2 * F, 2)] = z.real
    out[..., slice(F, 2 * F) if half else slice(1, 2 * F, 2)] = z.imag
    out[..., 2 * F :] = rest
    return out


def unrotated(x, positions, rope):
    """C15: vectors rotated back by their positions; rotated channels are divided by the attention factor."""
    return from_pairs(*unrotated_pairs(x, positions, rope), rope)


def scaled(x, rope):
    """Multiplies the rotated channels by the attention factor, as a rotation does."""
    z, rest = pairs_and_rest(x, rope)
    return from_pairs(z * (1.0 if rope is None else rope.factor), rest, rope)


def box_muller(u, count):
    """Normal numbers from pairs of uniforms, the cosine first, then the sine; 0 counts as 2^-53."""
    pairs = np.asarray(u, dtype=float)[: count + count % 2].reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(np.maximum(pairs[:, 0], 2.0**-53)))
    angle = 2 * np.pi * pairs[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:count]


def gaussian_matrix(head, rows, columns, U=None, seed=0):
    """[rows, columns], row-major, from the uniforms U or the head's sketch array (C13)."""
    count = rows * columns
    if U is None:
        U = head_uniform(head, seed, "sketch", np.arange(count + count % 2))
    return box_muller(U, count).reshape(rows, columns)


def keep_best(scores, held, B):
    """Keeps the held tokens and the best others, B in all. scores: [tokens]."""
    free = np.flatnonzero(~held)
    return np.sort(np.append(np.flatnonzero(held), free[top(scores[free], B - held.sum())]))


# --- Compactor --------------------------------------------------------------------------------------


def leverage(X, ridge=1e-2):
    """x_j^T (X^T X + ridge I)^-1 x_j of every row, at least 0."""
    inverse = np.linalg.inv(X.T @ X + ridge * np.eye(X.shape[1]))
    return np.maximum(0.0, rowwise(X @ inverse, X))


def received(head, first, last, chunk):
    """Non-causal attention that tokens first..last-1 receive inside chunks, times ||v||, pooled (width 3)."""
    total = np.zeros((head.G, last - first))
    for start in range(first, last, chunk):
        part = slice(start, min(last, start + chunk))
        logits = np.einsum("gid,jd->gij", head.q[:, part], head.k[part])
        total[:, start - first : part.stop - first] = softmax(logits).sum(axis=1)
    return pooled(total.mean(axis=0) * norms(head.v[first:last]), 3, "avg")


def standardised(x):
    """Standardised over all heads and tokens of the layer."""
    return (x - x.mean()) / max(x.std(ddof=1), 1e-6)


def compactor_parts(heads, sinks=8, recent=4, chunk=256, sketch=48, ridge=1e-2, U=None, seed=0):
    """Raw (leverage, attention) of the tokens between sinks and recents, [kv heads, tokens] each."""
    first, last = sinks, heads[0].P - recent
    lev = []
    for i, head in enumerate(heads):
        X = unrotated(head.k[first:last], np.arange(first, last), head.rope)
        X = X - X.mean(axis=0)
        if sketch > 0:
            given = None if U is None else U[i]
            X = X @ gaussian_matrix(head, head.d, sketch, given, seed) / np.sqrt(sketch)
        lev.append(leverage(X, ridge))
    return np.stack(lev), np.stack([received(head, first, last, chunk) for head in heads])


def compactor(heads, B, blend=0.35, sinks=8, recent=4, **more):
    """Compactor: leverage of the key and attention received, both standardised. U: [kv heads]."""
    P = heads[0].P
    if P <= B:
        return [oneshot(head, np.arange(P)) for head in heads]
    lev, attention = compactor_parts(heads, sinks, recent, **more)
    scores = np.zeros((len(heads), P))
    scores[:, sinks : P - recent] = blend * standardised(lev) + standardised(attention)
    held = ends(P, sinks, recent)
    return [oneshot(head, keep_best(s, held, B)) for head, s in zip(heads, scores, strict=True)]


# --- CapKV ------------------------------------------------------------------------------------------


def expected_query(q, head, first, n_future):
    """Mean of one query head's prompt queries from `first` on, rotated by the average future rotation.

    The attention factor is divided out and not restored: the average is over pure rotations.
    """
    mean = unrotated(q[first : head.P], np.arange(first, head.P), head.rope).mean(axis=0)
    return mean_rotation(head, n_future) @ mean


def capkv_scores(head, tau=5.0, n_future=512, sinks=4, eps=1e-6, variant="kvpress"):
    """Weighted leverage of the values, averaged over the group; weights from cosine or logit to the expected
    query.

    The sinks are left out of the largest exponent and of A. [P], 0 for sinks.
    """
    keys, v = head.k[sinks : head.P], head.v[sinks : head.P]
    total = np.zeros(head.P)
    for q in head.q:
        mu = expected_query(q, head, sinks, n_future)
        product = rowwise(keys, mu)
        if variant == "kvpress":
            length = norms(keys) * np.linalg.norm(mu)
            exponent = tau * np.divide(product, length, out=np.zeros_like(product), where=length > 0)
        else:
            exponent = head.scale * product
        w = np.exp(exponent - exponent.max())
        A = np.eye(head.dv) + (v * (w + eps)[:, None]).T @ v
        total[sinks:] += w * rowwise(v @ np.linalg.inv(A), v)
    return total / head.G


def capkv(head, B, sinks=4, **more):
    """CapKV: keeps the sinks and the tokens with the largest scores."""
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    return oneshot(head, keep_best(capkv_scores(head, sinks=sinks, **more), ends(head.P, sinks), B))


# --- Q-Filters --------------------------------------------------------------------------------------


def filter_direction(head, others=None):
    """Mean over the group of each head's first right singular vector, signed. [d].

    Computed from the prompt's queries (`calibration: self`), or from all queries of this head in `others`,
    stacked.
    """
    found = []
    for g, q in enumerate(head.q):
        rows = q[: head.P] if others is None else np.concatenate([text.q[g] for text in others])
        direction = np.linalg.svd(rows, full_matrices=False)[2][0]
        agree = (rows @ direction > 0).sum()
        found.append(direction if 2 * agree > len(rows) else -direction)
    return np.mean(found, axis=0)


def qfilters(head, B, phase="oneshot", recent=32, others=None):
    """Q-Filters: keeps the recent tokens and the keys that point most along the queries' main direction."""
    scores = rowwise(head.k, filter_direction(head, others))

    def cut(live):
        if len(live) <= B:
            return live
        return live[keep_best(scores[live], ends(len(live), 0, recent), B)]

    start = cut(np.arange(head.P))
    if phase == "oneshot":
        return oneshot(head, start)
    return Result(*replay(head, start, lambda t, live, p: cut(live)))
