"""Scores of the prompt's tokens, for one-shot methods and for the wrappers around them.

Every scorer takes the kv heads of one layer and returns a `Scored`: higher is kept, protected tokens are
kept first (C16). Sums run along one vector at a time, so that equal vectors get equal scores (C8).
"""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from .common import Rope, aggregate, causal_probs, rotate, softmax


@dataclass
class Scored:
    """scores: [kv heads, P], higher is better; protected: [P], kept whatever their score."""

    scores: np.ndarray
    protected: np.ndarray


def dots(x, y):
    """<x_i, y> for every row x_i of x, with one summation order for all."""
    return (x * y).sum(axis=-1)


def norms(x):
    return np.sqrt(dots(x, x))


def units(x):
    """Rows divided by their norm; a zero row stays zero."""
    length = norms(x)[..., None]
    return np.divide(x, length, out=np.zeros_like(x), where=length > 0)


def ends(P, sinks=0, recent=0):
    """Mask of the first `sinks` and the last `recent` of P tokens."""
    at = np.arange(P)
    return (at < sinks) | (at >= P - recent)


@lru_cache(maxsize=64)
def last_rows(head, w):
    """x_row(i) of the last w prompt rows: [G, w, P]."""
    first = max(0, head.P - w)
    p = np.zeros((head.G, head.P - first, head.P))
    for row in range(first, head.P):
        p[:, row - first, : row + 1] = softmax(head.scale * dots(head.k[: row + 1], head.q[:, row, None]))
    p.flags.writeable = False  # shared by all callers
    return p


def pooled(x, kernel, pool):
    """Pooling along the last axis, stride 1: `max` ignores positions outside, `avg` always divides by
    `kernel`."""
    half = kernel // 2
    fill = -np.inf if pool == "max" else 0.0
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], constant_values=fill)
    shifted = np.stack([padded[..., i : i + x.shape[-1]] for i in range(kernel)])
    return shifted.max(axis=0) if pool == "max" else shifted.sum(axis=0) / kernel


SNAPKV_VARIANTS = {
    "default": {},
    "kvpress": {"window": 64, "pool": "avg", "kernel": 5, "agg": "mean", "when": "after"},
    "paper_config": {"window": 32, "pool": "max", "kernel": 7, "agg": "mean", "when": "after"},
}


def snapkv(heads, window=None, kernel=None, pool=None, agg=None, when=None, variant="default"):
    """SnapKV: votes of the last rows for the prefix; the window itself is protected.

    Aggregates other than the sum are taken over the per-head column sums, before or after pooling.
    """
    fixed = {"window": 32, "kernel": 7, "pool": "max", "agg": "sum", "when": "before"}
    fixed |= SNAPKV_VARIANTS[variant]
    given = {"window": window, "kernel": kernel, "pool": pool, "agg": agg, "when": when}
    o = fixed | {name: value for name, value in given.items() if value is not None}
    P, w = heads[0].P, o["window"]
    scores = np.zeros((len(heads), P))
    for i, head in enumerate(heads):
        votes = last_rows(head, w)[:, :, : max(0, P - w)].sum(axis=1)
        if votes.shape[1] == 0:
            continue
        if o["when"] == "before":
            scores[i, : P - w] = pooled(aggregate(votes, o["agg"]), o["kernel"], o["pool"])
        else:
            scores[i, : P - w] = aggregate(pooled(votes, o["kernel"], o["pool"]), o["agg"])
    return Scored(scores, ends(P, recent=w))


def tova(heads, recent=0, agg="sum", variant="default"):
    """TOVA: the last prompt row. `layer`: mean over all heads, equal for every kv head; the last token is
    kept."""
    if heads[0].P == 0:
        return Scored(np.zeros((len(heads), 0)), ends(0))
    last = [last_rows(head, 1)[:, 0] for head in heads]
    if variant in ("layer", "kvpress"):
        mean = np.concatenate(last).mean(axis=0)
        return Scored(np.stack([mean] * len(heads)), ends(heads[0].P, recent=max(1, recent)))
    return Scored(np.stack([aggregate(x, agg) for x in last]), ends(heads[0].P, recent=recent))


def knorm(heads, recent=0):
    """Minus the L2 norm: small keys are kept."""
    return Scored(np.stack([-norms(h.k[: h.P]) for h in heads]), ends(heads[0].P, recent=recent))


def cosine_to_anchor(keys):
    """KeyDiff: cosine of every key to the mean of the unit keys; 0 for a zero key or a zero anchor."""
    if len(keys) == 0:
        return np.zeros(0)
    unit = units(keys)
    return dots(unit, units(unit.mean(axis=0)))


def keydiff(heads, recent=0):
    """KeyDiff: keys that differ from the mean direction are kept."""
    scores = np.stack([-cosine_to_anchor(h.k[: h.P]) for h in heads])
    return Scored(scores, ends(heads[0].P, recent=recent))


def mean_rotation(head, n_future):
    """Average rotation over positions P..P+n_future-1 as a matrix; identity for layers without RoPE."""
    if head.rope is None:
        return np.eye(head.d)
    rope = (tuple(head.rope.inv_freq), head.rope.layout, head.rope.factor)
    return _mean_rotation(rope, head.d, head.P, n_future)


@cache
def _mean_rotation(rope, d, first, n_future):
    inv_freq, layout, factor = rope
    rope, total = Rope(np.array(inv_freq), layout, factor), np.zeros((d, d))
    for position in range(first, first + n_future):
        total += rotate(np.eye(d), np.full(d, position), rope).T
    return total / n_future


def unrotated(x, positions, head):
    """C15: stored vectors rotated back by their position."""
    return x if head.rope is None else rotate(x, -np.asarray(positions, dtype=float), head.rope)


def expected_logits(head, g, n_future, sinks, covariance):
    """Steps 1-4 for one query head: the expected exponent of every prompt key."""
    q = unrotated(head.q[g, : head.P], np.arange(head.P), head)[sinks:]
    turn = mean_rotation(head, n_future)
    mu = turn @ q.mean(axis=0)
    centred = q - q.mean(axis=0)
    sigma = turn @ (centred.T @ centred / len(q)) @ turn.T
    keys = head.k[: head.P]
    z = head.scale * dots(keys, mu)
    if covariance:
        z = z + head.scale**2 / 2 * dots(dots(keys[:, None, :], sigma), keys)
    return z


def expected_attention(
    heads, n_future=512, sinks=4, covariance=True, vnorm=True, eps=0.0, recent=0, agg="mean"
):
    """Expected Attention: softmax of the expected logits over the tokens after the sinks, times ||v||."""
    scores = np.zeros((len(heads), heads[0].P))
    for i, head in enumerate(heads):
        z = [expected_logits(head, g, n_future, sinks, covariance)[sinks:] for g in range(head.G)]
        s = aggregate(softmax(np.stack(z)), agg)
        scores[i, sinks:] = (s + eps) * norms(head.v[sinks : head.P]) if vnorm else s
    return Scored(scores, ends(heads[0].P, sinks, recent))


def ascending_ranks(x):
    """Rank of every entry, 0 = smallest; among equal entries the lower index ranks higher (C8)."""
    best_first = np.argsort(-x, kind="stable")
    ranks = np.empty(len(x))
    ranks[best_first] = np.arange(len(x))[::-1]
    return ranks


def lag_spread(chunk, reference):
    """LagKV steps 2-3 for keys or values of one chunk."""
    low, high = reference.min(axis=0), reference.max(axis=0)
    width = high - low
    u = np.divide(chunk - low, width, out=np.zeros_like(chunk), where=width > 0)
    deviation = u.std(axis=1, ddof=1) if chunk.shape[1] > 1 else np.zeros(len(chunk))
    return softmax(deviation)


def lagkv(heads, sinks=4, lag=128, recent=0):
    """LagKV: ranks inside chunks normalised by the following chunk; short prompts keep the most recent
    tokens.

    Sinks, the last full chunk and the tail score 1 and are not protected: a small budget may cut them.
    """
    P = heads[0].P
    scores = np.ones((len(heads), P))
    if sinks + 2 * lag > P:
        scores[:, sinks:] = np.arange(P - sinks) / P
        return Scored(scores, ends(P, recent=recent))
    chunks = (P - sinks) // lag
    for i, head in enumerate(heads):
        for c in range(chunks - 1):
            here, after = sinks + c * lag, sinks + (c + 1) * lag
            spread = [lag_spread(x[here:after], x[after : after + lag]) for x in (head.k, head.v)]
            scores[i, here:after] = ascending_ranks((spread[0] + spread[1]) / 2) / lag
    return Scored(scores, ends(P, recent=recent))


def block_shares(x, block):
    """Entries divided by the sum of their block; a block of zeros stays zero."""
    out = np.zeros_like(x)
    for start in range(0, len(x), block):
        total = x[start : start + block].sum()
        if total > 0:
            out[start : start + block] = x[start : start + block] / total
    return out


def curdkv(heads, sinks=4, block=16, recent=0):
    """CurDKV: product of the keys' and the values' shares of squared norm in their block."""
    P = heads[0].P
    scores = np.zeros((len(heads), P))
    for i, head in enumerate(heads):
        k2, v2 = dots(head.k[:P], head.k[:P]), dots(head.v[:P], head.v[:P])
        product = block_shares(k2, block) * block_shares(v2, block)
        scores[i] = product / product.sum() if product.sum() > 0 else product
    scores[:, :sinks] = 1.0
    return Scored(scores, ends(P, sinks, recent))


def noncausal(heads, recent=0, agg="mean", chunk=256):
    """Attention without mask or scale inside chunks, times ||v||, pooled and standardised over the layer."""
    P = heads[0].P
    scores = np.zeros((len(heads), P))
    for i, head in enumerate(heads):
        received = np.zeros((head.G, P))
        for start in range(0, P, chunk):
            part = slice(start, min(P, start + chunk))
            for g in range(head.G):
                logits = dots(head.k[part], head.q[g, part, None])
                received[g, part] = softmax(logits).sum(axis=0)
        scores[i] = pooled(aggregate(received, agg) * norms(head.v[:P]), 3, "avg")
    return Scored((scores - scores.mean()) / scores.std(ddof=1), ends(P, recent=recent))


def observed(heads, recent=0, agg="sum"):
    """H2O variant `observed`: column sums over the causal prompt rows, per row that saw the token."""
    P = heads[0].P
    sums = np.stack([aggregate(causal_probs(h, P), agg).sum(axis=0) for h in heads])
    return Scored(sums / (P - np.arange(P)), ends(P, recent=recent))


SCORERS = {
    "snapkv": snapkv,
    "tova": tova,
    "knorm": knorm,
    "keydiff": keydiff,
    "expected_attention": expected_attention,
    "lagkv": lagkv,
    "curdkv": curdkv,
    "noncausal": noncausal,
    "observed": observed,
}


def score(scorer, heads, **extra):
    """Runs a scorer, named or as {name, parameters} as in the configuration."""
    spec = {"name": scorer} if isinstance(scorer, str) else dict(scorer)
    return SCORERS[spec.pop("name")](heads, **(extra | spec))


def protect(scored, sinks=0, recent=0):
    """C16: adds the axes `sinks` and `recent` to the tokens that the scorer protects."""
    return Scored(scored.scores, scored.protected | ends(len(scored.protected), sinks, recent))
