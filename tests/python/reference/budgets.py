"""Budgets of heads: LU-KV and HeadKV distribute tokens over heads, DuoAttention selects streaming heads.

Sources: LU-KV (arXiv 2602.08585), HeadKV (arXiv 2410.19258), DuoAttention (arXiv 2410.10819). Budgets are in
tokens per kv head, utilities in expected attention mass over the decode rows.
"""

import math
from itertools import pairwise

import numpy as np

from .common import Result, causal_probs, dots, replay, rotate, softmax, top
from .leverage import scaled, unrotated

# --- LU-KV ------------------------------------------------------------------------------------------


def future_mass(head):
    """I, [P]: exact attention to each prompt token, averaged over decode rows and the group."""
    return causal_probs(head)[:, head.P :, : head.P].mean(axis=(0, 1))


def keep_order(scores, protected):
    """Prompt tokens in the order in which a scorer keeps them, protected ones first."""
    return np.argsort(-np.where(protected, np.inf, scores), kind="stable")


def utility(mass, order):
    """U(0..P): U(b) is the utility of the first b tokens of the order."""
    return np.append(0.0, np.cumsum(mass[order]))


def hull_slopes(curve):
    """Slopes of the upper concave hull of curve(0..P), one per token, non-increasing."""
    corners = []
    for x, y in enumerate(curve):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    return np.concatenate(
        [np.full(x1 - x0, (y1 - y0) / (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(corners)]
    )


def greedy_shares(slopes, total, lo):
    """Budgets: every head starts with lo tokens; the largest slope gets the next one, ties to the lower
    head."""
    budgets = np.minimum(lo, [len(s) for s in slopes])
    while budgets.sum() < total:
        following = [s[b] if b < len(s) else -np.inf for s, b in zip(slopes, budgets, strict=True)]
        if max(following) == -np.inf:
            break
        budgets[int(np.argmax(following))] += 1
    return budgets


def largest_remainder(shares, total):
    """Whole numbers that sum to total: floors, then the largest remainders, ties to the lower head."""
    whole = np.floor(shares).astype(int)
    whole[top(shares - whole, total - whole.sum())] += 1
    return whole


def lu_kv_budgets(heads, scores, protected, B, lo=None):
    """Budgets of `calibration: self`, which uses future rows; heads: all recorded ones, layer-major."""
    lo = max(1, int(protected.sum())) if lo is None else lo
    slopes = [
        hull_slopes(utility(future_mass(head), keep_order(s, protected)))
        for head, s in zip(heads, scores, strict=True)
    ]
    return greedy_shares(slopes, B * len(heads), lo)


def lu_kv_learned(prompts, B, P, lo, norms=None):
    """Budgets of a prompt of P tokens from the curves of other prompts: (heads, scores, protected) of each.

    norms(head): the factors of `weight: contrib`.

    Each calibration prompt is distributed by its own curves at an equal share of its tokens, lo included; a
    head gets the mean of its shares.
    """
    shares = []
    for heads, scores, protected in prompts:
        slopes = [
            hull_slopes(utility(future_mass(h) * (norms(h) if norms else 1), keep_order(s, protected)))
            for h, s in zip(heads, scores, strict=True)
        ]
        length = heads[0].P
        total = B * len(heads) * length // P
        least = min(-(-lo * length // P), total // len(heads))
        shares.append(greedy_shares(slopes, total, least) / length)
    mean = np.round(np.mean(shares, axis=0) * P, 9)
    return largest_remainder(mean, B * mean.size)


# --- HeadKV -----------------------------------------------------------------------------------------


def headkv_budgets(shares, B, w, beta=1.2, temp=1.0):
    """An equal part for every head plus a pool shared by importance; shares: one per kv head, positive.

    Rounding is half to even, so that the sum may differ from B*heads by a few tokens.
    """
    b, weights = B - w, np.asarray(shares, dtype=float) ** temp
    given = math.floor(b / beta)
    pool = given * len(weights)
    return np.rint(weights / weights.sum() * pool + b - given).astype(int) + w


# --- DuoAttention -----------------------------------------------------------------------------------


def duo_mass(head, sinks=128, recent=256):
    """Mean attention of prompt rows t >= sinks + recent to tokens sinks..t - recent, averaged over the
    group."""
    x = causal_probs(head, head.P)
    rows = range(sinks + recent, head.P)
    return float(np.mean([x[:, t, sinks : t - recent + 1].sum(axis=1).mean() for t in rows]))


def duo_area(head, length=500):
    """Mean cumulative attention of the last row over copies of the mean key; large values reach far back."""
    at = np.arange(head.P)
    k = unrotated(head.k[: head.P], at, head.rope).mean(axis=0)
    areas = []
    for q in head.q:
        mean_q = unrotated(q[: head.P], at, head.rope).mean(axis=0)
        keys, last = np.tile(scaled(k, head.rope), (length, 1)), scaled(mean_q, head.rope)[None]
        if head.rope is not None:
            keys = rotate(keys, np.arange(length), head.rope)
            last = rotate(last, np.array([length - 1]), head.rope)
        areas.append(np.cumsum(softmax(head.scale * dots(last[0], keys))).mean())
    return float(np.mean(areas))


def streaming_heads(shares, stream_frac=0.5):
    """Selects the streaming heads among all recorded ones: the lowest shares, ties to the lower head."""
    lowest = np.argsort(shares, kind="stable")[: round(stream_frac * len(shares))]
    return np.isin(np.arange(len(shares)), lowest)


def duo_budgets(shares, B, stream_frac=0.5, sinks=128, recent=256):
    """The allocator: streaming heads hold sinks and recents, the others share the rest (largest
    remainder)."""
    streams = streaming_heads(np.asarray(shares), stream_frac)
    rest = B * streams.size - streams.sum() * (sinks + recent)
    tokens = np.full(streams.size, sinks + recent)
    tokens[~streams] = largest_remainder(np.full((~streams).sum(), rest / max(1, (~streams).sum())), rest)
    return tokens, streams


def duo_attention(layers, B=None, rule="mass", stream_frac=0.5, sinks=128, recent=256, length=500):
    """Retrieval heads keep everything; the others keep the sinks and the newest tokens at every step.

    layers: the kv heads of each layer; heads of all layers compete. One list of results per layer.
    """
    shares = [
        duo_area(head, length) if rule == "area" else duo_mass(head, sinks, recent)
        for heads in layers
        for head in heads
    ]
    streams = streaming_heads(np.array(shares), stream_frac)
    starts = np.cumsum([0, *map(len, layers)])

    def cut(live):
        if len(live) <= sinks + recent:
            return live
        return np.append(live[:sinks], live[-recent:] if recent else live[:0])

    def run(head, narrow):
        if not narrow:
            return Result(*replay(head, np.arange(head.P)))
        return Result(*replay(head, cut(np.arange(head.P)), lambda t, live, p: cut(live)))

    return [
        [run(head, narrow) for head, narrow in zip(heads, streams[a:b], strict=True)]
        for heads, (a, b) in zip(layers, pairwise(starts), strict=True)
    ]
