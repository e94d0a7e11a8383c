"""The replay of a kv head with a row format, and the tier-1 methods that need it."""

from dataclasses import dataclass, field

import numpy as np

from .common import Result, aggregate, causal_probs, oneshot, rotate, softmax, stack, top
from .row_store import Store
from .tier2_scores import dots


def make_store(head, row_format=None, **draws):
    """Makes the store of a `row_format:` of a configuration."""
    return Store(head, row_format, **draws)


def attend_stored(head, store, t, live, weight, positions="original"):
    """Attention of row t over its live entries: probabilities [G, m] without weights, and outputs [G, dv]."""
    keys = store.k[live]
    if positions == "cache" and head.rope is not None:
        keys = rotate(keys, (t - live) - (len(live) - 1 - np.arange(len(live))), head.rope)
    p = softmax(head.scale * dots(keys, head.q[:, t, None]))
    weighted = p * weight[live]
    return p, (weighted / weighted.sum(axis=1, keepdims=True)) @ store.v[live]


@dataclass
class Account:
    """Bytes over the steps. per_row: a method's further bytes per held row (scores, positions)."""

    store: Store
    per_row: int = 0
    peak: float = 0.0
    aux: float = 0.0
    final: float = field(default=0.0)

    def attended(self, live):
        self.peak = max(self.peak, self.store.bytes_of(live)[0])

    def kept(self, live):
        numbers, scales = self.store.bytes_of(live)
        aux = scales + self.per_row * len(live)
        self.peak, self.aux, self.final = max(self.peak, numbers), max(self.aux, aux), numbers + aux


def replay_stored(
    head, start, evict=None, row_format=None, num=None, positions="original", per_row=0, counted=True, **draws
):
    """C4 with a row format: appends, attends, calls `evict(t, live, p, keys)`, codes the survivors.

    num: weights of the entries of `start`, in both sums. Without `evict` the result is one-shot. With
    `counted` the result's extra `account` holds the bytes.
    """
    if evict is None and row_format is None and not counted:
        return oneshot(head, start, num, positions=positions)
    store = make_store(head, row_format, **draws)
    account = Account(store, per_row) if counted else None
    live = np.asarray(start, dtype=int)
    weight = np.ones(head.n)
    if num is not None:
        weight[live] = num
    store.settle(live)
    if counted:
        account.kept(live)
    kept, outs = [live], []
    for t in range(head.P, head.n):
        live = np.append(live, t)
        store.arrive(t)
        if counted:
            account.attended(live)
        p, out = attend_stored(head, store, t, live, weight, positions)
        outs.append(out)
        if evict is not None:
            live = np.asarray(evict(t, live, p, store.k), dtype=int)
        store.settle(live)
        if counted:
            account.kept(live)
        kept.append(live)
    lists = kept if evict is not None else kept[:1]
    weights = None if num is None else [weight[s] for s in lists]
    return Result(kept=lists, out=stack(head, outs), num=weights, den=weights, extras={"account": account})


# --- Tier-1 methods, reduced to what row formats need ---------------------------------------------


def exact(head, row_format=None, **draws):
    """Keeps every token; with a row format, quantisation is the only error."""
    return replay_stored(head, np.arange(head.P), lambda t, live, p, keys: live, row_format, **draws)


def window(head, B, row_format=None, **draws):
    """Keeps the last B tokens."""
    start = np.arange(max(0, head.P - B), head.P)
    return replay_stored(head, start, lambda t, live, p, keys: live[-B:], row_format, **draws)


def streaming_llm(head, B, row_format=None, sinks=4, positions="cache", **draws):
    """Keeps the first `sinks` tokens and the last others; keys are rotated to their place in the cache."""

    def cut(live):
        return live if len(live) <= B else np.append(live[:sinks], live[len(live) - B + sinks :])

    return replay_stored(
        head,
        cut(np.arange(head.P)),
        lambda t, live, p, keys: cut(live),
        row_format,
        positions=positions,
        **draws,
    )


def h2o(head, B, row_format=None, agg="sum", **draws):
    """H2O (real drop) with equal halves."""
    recent = B - B // 2
    score = np.zeros(head.n)
    score[: head.P] = aggregate(causal_probs(head, head.P), agg).sum(axis=0)

    def cut(live):
        if len(live) <= B:
            return live
        older = live[: len(live) - recent]
        return np.append(older[top(score[older], B - recent)], live[len(live) - recent :])

    def evict(t, live, p, keys):
        score[live] += aggregate(p, agg)
        return cut(live)

    return replay_stored(head, cut(np.arange(head.P)), evict, row_format, **draws)
