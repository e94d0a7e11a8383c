"""SubGen: Algorithm 1 (online clusters and a value reservoir) and the recent + k-center form."""

import math

import numpy as np

from .common import (
    Result,
    farthest_first,
    head_uniform,
    oneshot,
    ratio_output,
    stack,
)


def median_distance(points, seed=0, prompt=0, layer=0, kv_head=0, most=2000):
    """Median pairwise distance; a seeded sample beyond `most` pairs (the order of draws is our reading)."""
    from .common import uniform

    n = len(points)
    if n * (n - 1) // 2 <= most:
        i, j = np.triu_indices(n, 1)
    else:
        at = np.arange(most)
        i, j = (
            np.floor(uniform(seed, prompt, layer, kv_head, "distance_pairs", at, slot) * (n - slot)).astype(
                int
            )
            for slot in (0, 1)
        )
        j = j + (j >= i)
    return float(np.median(np.sqrt(((points[i] - points[j]) ** 2).sum(axis=1))))


def theory_sizes(head, epsilon, delta, c_t=1.0, c_s=1.0, t_max=64, s_max=2048):
    """t and s of Corollary 1, capped; natural logarithms."""
    r = np.sqrt(((head.scale * head.q) ** 2).sum(axis=2)).max()
    log_t = math.log(c_t) - 2 * math.log(epsilon) + 2 * delta * r + math.log(math.log(head.n))
    t = t_max if log_t > math.log(t_max) else math.ceil(math.exp(log_t))
    return min(t, t_max), min(math.ceil(c_s * epsilon**-2 * head.d), s_max)


class Clusters:
    """Representatives that never move; each has a list of t keys and a count."""

    def __init__(self, delta, t):
        self.delta, self.t = delta, t
        self.reps, self.lists, self.counts = [], [], []

    def add(self, keys, token, u):
        if self.reps:
            distance = np.sqrt(((keys[self.reps] - keys[token]) ** 2).sum(axis=1))
            i = int(np.argmin(distance))
            if distance[i] <= self.delta:
                self.counts[i] += 1
                self.lists[i][u < 1.0 / self.counts[i]] = token
                return
        self.reps.append(token)
        self.lists.append(np.full(self.t, token))
        self.counts.append(1)


def subgen_stream(
    head,
    B=None,
    seed=0,
    delta=None,
    delta_rel=None,
    t=8,
    s=128,
    epsilon=None,
    sinks=0,
    t_max=64,
    s_max=2048,
    c_t=1.0,
    c_s=1.0,
    UD=None,
    UM=None,
):
    """Algorithm 1. extras: m (clusters after each token), reps, counts, lists, M (-1 = empty slot), mu."""
    if delta is None:
        delta = delta_rel * median_distance(head.k, seed, head.prompt_rank, head.layer, head.kv_head)
    if epsilon is not None:
        t, s = theory_sizes(head, epsilon, delta, c_t, c_s, t_max, s_max)
    at = np.arange(head.n)[:, None]
    UD = head_uniform(head, seed, "subgen_clusters", at, np.arange(t)) if UD is None else UD
    UM = head_uniform(head, seed, "subgen_reservoir", at, np.arange(s)) if UM is None else UM
    clusters, M, mu = Clusters(delta, t), np.full(s, -1), 0.0
    norm2 = (head.v**2).sum(axis=1)
    m, outs = [], []
    for token in range(head.n):
        if token >= sinks:
            clusters.add(head.k, token, UD[token])
            w = norm2[token]
            M[UM[token] < (w / (mu + w) if w > 0 else 0.0)] = token
            mu += w
        m.append(len(clusters.reps))
        if token >= head.P:
            outs.append(_estimate(head, token, clusters, M[M >= 0], mu / s, norm2, sinks))
    extras = {
        "m": np.array(m),
        "reps": np.array(clusters.reps),
        "counts": np.array(clusters.counts),
        "lists": np.array(clusters.lists),
        "M": M,
        "mu": mu,
        "delta": delta,
        "t": t,
        "s": s,
    }
    return Result(None, stack(head, outs), extras=extras)


def _estimate(head, token, clusters, drawn, share, norm2, sinks):
    """z / tau for the G queries of one row; sinks are exact in both."""
    first = np.arange(min(sinks, token + 1))
    ids_n = np.concatenate([first, drawn])
    a = np.concatenate([np.ones(len(first)), share / norm2[drawn]])
    ids_d = np.concatenate([first, *clusters.lists]).astype(int)
    b = np.concatenate([np.ones(len(first)), np.repeat(np.array(clusters.counts) / clusters.t, clusters.t)])
    numerator, denominator = (head.k[ids_n], head.v[ids_n], a), (head.k[ids_d], b)
    return ratio_output(head.q[:, token], numerator, denominator, head.scale)


def subgen(head, B, seed=0, recent=None, first=0, weights="none"):
    """SubGen: keeps the last `recent` prompt tokens and B - recent farthest-first centres of the older
    keys."""
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    recent = B // 2 if recent is None else recent
    old = head.P - recent
    if first == "random":
        first = int(head_uniform(head, seed, "kcenter_start", 0) * old)
    keys = head.k[:old]
    order = farthest_first(keys, B - recent, first)
    kept = np.append(np.sort(order), np.arange(old, head.P))
    if weights == "none":
        return oneshot(head, kept)
    distance = np.sqrt(((keys[:, None] - keys[order]) ** 2).sum(axis=2))
    size = np.bincount(np.argmin(distance, axis=1), minlength=len(order))  # earlier centres win ties
    w = np.ones(len(kept))
    w[: len(order)] = size[np.argsort(order)]
    return oneshot(head, kept, w)
