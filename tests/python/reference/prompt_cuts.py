"""Cuts of the prompt that heads, layers or the model make together: DefensiveKV, KVCompose, LAVa, SimLayerKV,
and the budgets of ZigZagKV.

Sources: DefensiveKV (arXiv 2510.13334), KVCompose (arXiv 2509.05165), LAVa (arXiv 2509.09754), SimLayerKV
(arXiv 2410.13846), ZigZagKV (arXiv 2412.09036), leverage scores in kvpress.
"""

from itertools import pairwise

import numpy as np

from . import leverage as keys
from .common import causal_probs, dots, oneshot, replay, softmax, top
from .output_aware import projected_norms
from .tier2_scores import norms, pooled, snapkv


def window_rows(head, w):
    """[G, w, P]: probabilities of the last w prompt rows."""
    return causal_probs(head, head.P)[:, head.P - w :]


def chosen(heads, sets):
    return [oneshot(head, np.sort(kept)) for head, kept in zip(heads, sets, strict=True)]


def shared_top(scores, count):
    """The tokens of each head among the `count` largest scores; ties: head, token."""
    sizes = np.cumsum([0, *map(len, scores)])
    best = top(np.concatenate(scores), count)
    return [best[(best >= a) & (best < b)] - a for a, b in pairwise(sizes)]


def per_layer(layers, results):
    found = iter(results)
    return [[next(found) for _ in heads] for heads in layers]


def everything(layers):
    return [[oneshot(h, np.arange(h.P)) for h in heads] for heads in layers]


# --- Leverage ---------------------------------------------------------------------------------------


def leverage(head, B, sinks=0, recent=0):
    X = keys.unrotated(head.k[: head.P], np.arange(head.P), head.rope)
    scores = keys.leverage(X - X.mean(axis=0))
    tokens = np.arange(head.P)
    held = (tokens < sinks) | (tokens >= head.P - recent)
    return oneshot(head, tokens if head.P <= B else keys.keep_best(scores, held, B))


# --- DefensiveKV ------------------------------------------------------------------------------------


def worst_votes(head, w, kernel):
    """Steps 2 and 3: [P-w]."""
    p = window_rows(head, w)[:, :, : head.P - w]
    near = pooled(p, kernel, "avg")
    s = (near * (p.sum(axis=-1, keepdims=True) / near.sum(axis=-1, keepdims=True))).max(axis=(0, 1))
    return np.maximum(s, s.mean())


def safe_count(a, mass, most):
    """Step 5: the tokens before the first whose running sum reaches `mass`."""
    running = np.cumsum(np.sort(a / a.sum())[::-1])
    return min(most, int((running < mass).sum()))


def defensive_scores(heads, B, w, kernel, mass, level):
    P = heads[0].P
    s = np.stack([worst_votes(h, w, kernel) for h in heads])
    N = np.stack([projected_norms(h)[: P - w] for h in heads])
    s = s * (N / N.sum(axis=0))  # exactly s with one head, so that the floor makes ties
    votes = np.stack([window_rows(h, w)[:, :, : P - w].mean(axis=(0, 1)) for h in heads])
    b = votes[:, -w:].sum(axis=1).mean()
    full = np.full((len(heads), P), np.inf if level == "model" else s.max())
    full[:, : P - w] = s
    for i, a in enumerate(votes):
        k = safe_count(a, mass - b, B - w)
        full[i, np.argsort(-a, kind="stable")[:k]] = s.max()
    return list(full)


def defensivekv(layers, B, window=32, kernel=5, mass=0.9, level="layer"):
    if layers[0][0].P <= B:
        return everything(layers)
    scores = [defensive_scores(heads, B, window, kernel, mass, level) for heads in layers]
    if level == "model":
        every = [s for of_layer in scores for s in of_layer]
        heads = [h for heads in layers for h in heads]
        return per_layer(layers, chosen(heads, shared_top(every, B * len(every))))
    return [chosen(heads, shared_top(s, B * len(heads))) for heads, s in zip(layers, scores, strict=True)]


# --- KVCompose --------------------------------------------------------------------------------------


def repeated_votes(head, repeat, rows="max"):
    """Step 1: [P]. Every row sees the whole context and the rows of its chunk up to itself."""
    found = []
    for first, last in pairwise(repeat.rows):
        for t in range(first, last):
            near = np.concatenate([head.k[: head.P], repeat.k[first : t + 1]])
            found.append(softmax(head.scale * dots(repeat.q[:, t : t + 1], near))[:, 0, : head.P])
    votes = np.stack(found, axis=1)  # [G, rows, P]
    return (votes.max(axis=1) if rows == "max" else votes.mean(axis=1)).mean(axis=0)


def compose_scores(heads, repeats, mean_heads, vnorm, rows):
    s = np.stack([repeated_votes(h, r, rows) for h, r in zip(heads, repeats, strict=True)])
    if vnorm:
        s = s * np.stack([norms(h.v[: h.P]) for h in heads])
    return s + s.mean(axis=0) if mean_heads else s


def kvcompose(layers, repeats, B, structured=True, mean_heads=True, vnorm=False, rows="max"):
    if layers[0][0].P <= B:
        return everything(layers)
    scores = [
        compose_scores(heads, own, mean_heads, vnorm, rows)
        for heads, own in zip(layers, repeats, strict=True)
    ]
    flat = [h for heads in layers for h in heads]
    every = [s for of_layer in scores for s in of_layer]
    if not structured:
        return per_layer(layers, chosen(flat, shared_top(every, B * len(every))))
    composite = np.stack([np.sort(s, axis=1)[:, ::-1].mean(axis=0) for s in scores])
    composite[0] = composite.max(axis=0)
    counts = [len(won) for won in shared_top(list(composite), B * len(layers))]
    return [chosen(heads, [top(x, m) for x in s]) for heads, s, m in zip(layers, scores, counts, strict=True)]


# --- LAVa -------------------------------------------------------------------------------------------


def lava_scores(head, w, kernel):
    prefix = head.P - w
    votes = pooled(window_rows(head, w)[:, :, :prefix].mean(axis=1), kernel, "max")
    return (votes * np.abs(head.v[:prefix]).sum(axis=1).max()).max(axis=0)


def entropy(scores):
    x = np.concatenate(scores) / np.sum(scores)
    return -(x * np.log(x, where=x > 0, out=np.zeros_like(x))).sum() / np.log(len(x))


def lava(layers, B, window=32, kernel=7, floor=0.2):
    P = layers[0][0].P
    if P <= B:
        return everything(layers)
    scores = [[lava_scores(h, window, kernel) for h in heads] for heads in layers]
    e = np.array([entropy(s) for s in scores])
    results = []
    for heads, s, share in zip(layers, scores, e / e.sum(), strict=True):
        base = int(np.floor((B - window) * len(layers) * share))
        won = [len(tokens) for tokens in shared_top(s, base * len(heads))]
        sizes = [int(np.rint(c * (1 - floor) + np.floor(base * floor))) for c in won]
        window_tokens = np.arange(P - window, P)
        kept = [np.append(top(x, m), window_tokens) for x, m in zip(s, sizes, strict=True)]
        results.append(chosen(heads, kept))
    return results


# --- SimLayerKV -------------------------------------------------------------------------------------


def ends_seen(heads, sinks, recent, last):
    p = np.mean([window_rows(h, last).mean(axis=(0, 1)) for h in heads], axis=0)[: heads[0].P - last]
    return p[:sinks].sum() + p[max(sinks, len(p) - recent) :].sum()


def simlayerkv(heads, B, sinks=4, recent=1024, last=1, threshold=0.9, phase="stream"):
    P = heads[0].P
    score = ends_seen(heads, sinks, recent, last)
    lazy = score > threshold and sinks + recent + last < P

    def ends(live):
        return np.append(live[:sinks], live[sinks:][-recent:])

    def played(head):
        if phase == "oneshot" or not lazy:
            return oneshot(head, ends(np.arange(P)) if lazy else np.arange(P))
        kept, out = replay(head, ends(np.arange(P)), lambda t, live, p: ends(live))
        result = oneshot(head, kept[0])
        result.kept, result.out = kept, out
        return result

    return [played(head) for head in heads]


# --- ZigZagKV ---------------------------------------------------------------------------------------


def mass_tokens(scores, mass):
    held = np.cumsum(np.sort(scores)[::-1])
    return 1 + int(np.argmax(held >= (1 - 1e-9) * mass * scores.sum()))


def proportional(weights, total, most):
    """Whole numbers in proportion, by largest remainder, none above `most`."""
    shares, open_ = np.full(len(weights), float(most)), np.arange(len(weights))
    while len(open_):
        rest = total - most * (len(weights) - len(open_))
        shares[open_] = rest * weights[open_] / weights[open_].sum()
        full = shares[open_] >= most
        shares[open_[full]] = most
        open_ = open_[~full]
        if not full.any():
            break
    whole = np.floor(shares + 1e-9).astype(int)
    order = np.argsort(-np.round(shares - whole, 9), kind="stable")
    left = min(total, most * len(weights)) - whole.sum()
    whole[order[:left]] += 1
    return whole


def zigzag(layers, B, mass=0.9, lo=None, window=32, kernel=7, pool="max"):
    """Budgets of layers over snapkv."""
    P = layers[0][0].P
    if P <= B:
        return everything(layers)
    start = window if lo is None else lo
    scores = [snapkv(heads, window, kernel, pool).scores for heads in layers]
    spread = np.array([np.mean([mass_tokens(x[: P - window], mass) for x in s]) for s in scores])
    sizes = start + proportional(spread, (B - start) * len(layers), P - start)
    held = np.arange(P - window, P)
    return [
        chosen(heads, [np.append(top(x[: P - window], m - window), held) for x in s])
        for heads, s, m in zip(layers, scores, sizes, strict=True)
    ]
