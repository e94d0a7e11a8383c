"""topk_oracle, topp and static_oracle: upper limits that use information hidden from methods."""

import math

import numpy as np

from .common import (
    Result,
    aggregate,
    causal_probs,
    dots,
    oneshot,
    per_query_head,
    query_time,
    softmax,
    stack,
    top,
)


def exact_row(head, t):
    """x_t per query head: [G, t + 1]."""
    return softmax(head.scale * dots(head.q[:, t], head.k[: t + 1]))


def _read(head, choose):
    """Attends to choose(t, x_t) at every decode row."""
    attended = [choose(t, exact_row(head, t)) for t in range(head.P, head.n)]
    return Result(None, query_time(head, attended), attended=attended)


def topk_oracle(head, B, seed=0, extra=1, per_head=False, variant="default", f=None, renormalise=True):
    """Reads the B + extra largest x_t; the helpers describe the variants."""
    if variant == "topk_plus_current":
        return topk_plus_current(head, B / head.P if f is None else f, renormalise, per_head)
    if variant == "with_h2o":
        return topk_with_h2o(head, B)
    if per_head:
        return _read(head, lambda t, x: [top(row, B + extra) for row in x])
    return _read(head, lambda t, x: top(aggregate(x), B + extra))


def topk_plus_current(head, f, renormalise=True, per_head=False):
    """Reads the top floor(f*t) of the t previous tokens and the current one; without renormalising, p stays
    x."""

    def choose(t, scores):
        return np.append(top(scores[:t], math.floor(f * t)), t)

    if per_head:
        result = _read(head, lambda t, x: [choose(t, row) for row in x])
    else:
        result = _read(head, lambda t, x: choose(t, aggregate(x)))
    if not renormalise:
        for t, sets in enumerate(result.attended, start=head.P):
            x = exact_row(head, t)
            for g in range(head.G):
                s = sets[g] if per_head else sets
                result.out[g, t - head.P] = x[g, s] @ head.v[s]
    return result


def topk_with_h2o(head, B):
    """floor(B/2) resident heavy hitters, the newest token, and the top B - floor(B/2) of x_t of all tokens.

    Our reading: scores are the probabilities over the attended tokens; the newest competes (no recents).
    """
    heavy = B // 2
    A = np.zeros(head.n)
    A[: head.P] = aggregate(causal_probs(head, head.P)).sum(axis=0)
    resident = top(A[: head.P], heavy) if heavy < head.P else np.arange(head.P)
    kept, attended, outs = [resident], [], []
    for t in range(head.P, head.n):
        x = exact_row(head, t)
        candidates = np.append(resident, t)
        live = np.union1d(candidates, top(aggregate(x), B - heavy))
        p = x[:, live] / x[:, live].sum(axis=1, keepdims=True)
        outs.append(p @ head.v[live])
        A[candidates] += aggregate(p)[np.isin(live, candidates)]
        resident = candidates[top(A[candidates], heavy)]
        kept.append(resident)
        attended.append(live)
    return Result(None, stack(head, outs), attended=attended, extras={"resident": kept})


def _prefix(mass, p):
    """The shortest prefix of the tokens, sorted by C8, with mass of at least p."""
    order = np.argsort(-mass, kind="stable")
    count = int(np.searchsorted(np.cumsum(mass[order]), p)) + 1
    return np.sort(order[:count])


def topp(head, B=None, seed=0, p=0.95, per_head=False):
    """Reads the shortest prefix of the sorted x_t (group mean) with mass of at least p."""
    if per_head:
        return _read(head, lambda t, x: [_prefix(row, p) for row in x])
    return _read(head, lambda t, x: _prefix(aggregate(x, "mean"), p))


def static_oracle(head, B, seed=0, per_head=False):
    """Keeps the B prompt tokens with the largest exact mass over all decode rows."""
    if per_head and head.G > 1:
        return per_query_head(static_oracle, head, B)
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    return oneshot(head, top(aggregate(causal_probs(head))[head.P :, : head.P].sum(axis=0), B))
