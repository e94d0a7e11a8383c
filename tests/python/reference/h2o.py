"""H2O: heavy hitters by accumulated attention, and the variants of its released code."""

import math

import numpy as np

from .common import (
    Result,
    aggregate,
    causal_probs,
    dots,
    head_uniform,
    oneshot,
    play,
    query_time,
    replay,
    softmax,
    stack,
    top,
)


def prompt_votes(head, score_rows="full", agg="sum"):
    """Accumulated attention A, and the number of rows that saw each token, over the voting prompt rows."""
    first = {"full": 0, "decode_only": head.P}.get(score_rows)
    if first is None:
        first = max(0, head.P - int(score_rows.removeprefix("last:")))
    rows = np.arange(first, head.P)
    A, seen = np.zeros(head.n), np.zeros(head.n)
    A[: head.P] = aggregate(causal_probs(head, head.P), agg)[rows].sum(axis=0)
    seen[: head.P] = (rows[:, None] >= np.arange(head.P)).sum(axis=0)
    return A, seen


def sizes(B, recent_frac=0.5, heavy=None, recent=None):
    """Numbers of heavy and recent tokens of a budget."""
    heavy = math.floor((1 - recent_frac) * B + 1e-9) if heavy is None else heavy
    return heavy, B - heavy if recent is None else recent


def h2o(head, B, seed=0, variant="real_drop", recent_frac=0.5, heavy=None, recent=None, **more):
    """H2O; `variant` selects a rule by name."""
    if variant == "observed":
        return observed(head, B, **more)
    if variant == "kvfactory":
        return kvfactory(head, B, **more)
    if variant == "alg1":
        return alg1(head, B, **more)
    heavy, recent = sizes(B, recent_frac, heavy, recent)
    if variant == "flexgen":
        return flexgen(head, heavy, **more)
    rule = {
        "real_drop": real_drop,
        "hf_mask": hf_mask,
        "local_mask": local_mask,
        "oracle_global": oracle_global,
    }
    return rule[variant](head, heavy, recent, **more)


def h2o_heavy(head, B, seed=0, variant="default"):
    """Keeps heavy hitters and the newest token; strict: heavy hitters only."""
    recent = 0 if variant == "strict" else 1
    return real_drop(head, B - recent, recent)


def drop_heavy(head, B, seed=0, drop="heavy", sinks=0):
    """Drops P - B prompt tokens: the most attended, the least attended, or random ones; never sinks."""
    A = prompt_votes(head)[0][: head.P]
    u = head_uniform(head, seed, "uniform", np.arange(head.P))
    score = {"heavy": -A, "light": A, "random": -u}[drop]
    kept = np.append(np.arange(sinks), sinks + top(score[sinks:], B - sinks))
    return oneshot(head, kept if head.P > B else np.arange(head.P))


def real_drop(
    head,
    heavy,
    recent,
    score_rows="full",
    score_norm="sum",
    positions="original",
    phase="stream",
    agg="sum",
    play=play,
):
    """The released "real drop" rule: keeps the last `recent` and the top `heavy` of the rest."""
    A, seen = prompt_votes(head, score_rows, agg)

    def cut(live):
        if len(live) <= heavy + recent:
            return live
        score = A[live] / np.maximum(seen[live], 1) if score_norm == "mean" else A[live]
        old = len(live) - recent
        return np.append(live[top(score[:old], heavy)], live[old:])

    def evict(t, live, p):
        A[live] += aggregate(p, agg)
        seen[live] += 1
        return cut(live)

    start = cut(np.arange(head.P))
    return play(head, start, evict, phase, positions)


def alg1(head, B, agg="sum"):
    """The paper's Algorithm 1: streamed prompt, no recents, one eviction per token, no scores while
    filling."""
    A, live, kept, outs = np.zeros(head.n), np.zeros(0, dtype=int), [], []
    for t in range(head.n):
        full = len(live) >= B
        live = np.append(live, t)
        p = softmax(head.scale * dots(head.q[:, t], head.k[live]))
        if t >= head.P:
            outs.append(p @ head.v[live])
        if full:
            A[live] += aggregate(p, agg)
            live = live[top(A[live], B)]
        if t >= head.P - 1:
            kept.append(live)
    return Result(kept, stack(head, outs))


def hf_mask(head, heavy, recent):
    """The released mask simulation: nothing is dropped, column K - recent is hidden for one step."""
    A, _ = prompt_votes(head)
    attended, outs = [], []
    for K in range(head.P, head.n):  # K columns so far; row K is the incoming one
        visible = np.arange(K + 1)
        if heavy + recent < K:
            visible = np.append(top(A[: K - recent], heavy), np.arange(K + 1 - recent, K + 1))
            hidden = np.setdiff1d(np.arange(K - recent), visible)
            A[hidden] = 0.0
        p = softmax(head.scale * dots(head.q[:, K], head.k[visible]))
        outs.append(p @ head.v[visible])
        A[visible] += aggregate(p)
        attended.append(visible)
    return Result(None, stack(head, outs), attended=attended)


def local_mask(head, heavy, recent):
    """Causal mask of the released lm-eval script: full rows are added, scores of tokens not kept become 0."""
    x = aggregate(causal_probs(head))
    A = np.zeros(head.n)
    A[:heavy] = x[:heavy, :heavy].sum(axis=0)
    attended = [np.arange(t + 1) for t in range(head.P, min(heavy, head.n))]
    for t in range(heavy, head.n):
        keep = np.zeros(head.n, dtype=bool)
        keep[top(A[:t], heavy - 1)] = True
        keep[t] = True
        A = np.where(keep, A + x[t], 0.0)
        if t >= head.P:
            attended.append(np.union1d(np.flatnonzero(keep), np.arange(max(0, t + 1 - recent), t + 1)))
    return Result(None, query_time(head, attended), attended=attended)


def oracle_global(head, heavy, recent):
    """Not causal: every row keeps the top `heavy` by the scores of all n rows, and the last recent + 1."""
    heavies = top(aggregate(causal_probs(head)).sum(axis=0), heavy)
    attended = [
        np.union1d(heavies[heavies <= t], np.arange(max(0, t - recent), t + 1)) for t in range(head.P, head.n)
    ]
    return Result(None, query_time(head, attended), attended=attended)


def flexgen(head, heavy):
    """2*heavy - 1 entries; each step evicts the weakest heavy token, and the oldest recent one replaces
    it."""
    A, _ = prompt_votes(head)
    old = head.P - heavy + 1
    heavies = top(A[:old], min(heavy, old))
    start = np.append(heavies, np.arange(old, head.P))
    state = {"heavy": heavies}

    def evict(t, live, p):
        A[live] += aggregate(p)
        strong = state["heavy"][top(A[state["heavy"]], len(state["heavy"]) - 1)]
        recent = live[~np.isin(live, state["heavy"])]
        state["heavy"] = np.sort(np.append(strong, recent[0]))
        return np.sort(np.append(strong, recent))

    kept, out = replay(head, start, evict)
    return Result(kept, out)


def observed(head, B, agg="sum"):
    """Column sum divided by the rows that saw the token, no recents, one shot."""
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    A, seen = prompt_votes(head, agg=agg)
    return oneshot(head, top((A / np.maximum(seen, 1))[: head.P], B))


def kvfactory(head, B, agg="sum", recent=32):
    """Column sum, the last 32 kept, the top B - 32 of the others, one shot."""
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    old = head.P - min(recent, B)
    A, _ = prompt_votes(head, agg=agg)
    return oneshot(head, np.append(top(A[:old], B - recent), np.arange(old, head.P)))
