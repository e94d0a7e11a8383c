"""SnapKV (observation-window votes) and PyramidKV (a budget per layer)."""

import numpy as np

from .common import aggregate, causal_probs, oneshot, play, top

PRESETS = {
    "default": {},
    "kvpress": {"window": 64, "pool": "avg", "kernel": 5, "agg": "mean", "when": "after"},
    "paper_config": {"window": 32, "pool": "max", "kernel": 7, "agg": "mean", "when": "after"},
    "kvfactory": {"window": 8, "pool": "max", "kernel": 7},
    "none_pool": {"kernel": 1},
}


def pooled(s, kernel, pool):
    """Pooling of width `kernel`, stride 1: max ignores positions outside, avg counts them as 0."""
    half = kernel // 2
    edge = np.full(half, -np.inf if pool == "max" else 0.0)
    padded = np.concatenate([edge, s, edge])
    windows = np.stack([padded[i : i + kernel] for i in range(len(s))])
    return windows.max(axis=1) if pool == "max" else windows.sum(axis=1) / kernel


def snapkv_scores(head, window, kernel, pool, agg, when):
    """Votes of the last `window` prompt rows for the prefix."""
    x = causal_probs(head, head.P)
    prefix = head.P - window
    s = x[:, prefix:, :prefix].sum(axis=1)
    if when == "after":
        return aggregate(np.stack([pooled(row, kernel, pool) for row in s]), agg)
    return pooled(aggregate(s, agg), kernel, pool)


def snapkv(head, B, seed=0, variant="default", play=play, **given):
    """SnapKV: keeps the top B - window of the pooled votes, and the window."""
    defaults = {"window": 32, "kernel": 7, "pool": "max", "agg": "sum", "when": "before"}
    a = defaults | PRESETS[variant] | given
    if head.P <= B:
        kept = np.arange(head.P)
    elif a["window"] >= B:
        kept = np.arange(head.P - B, head.P)
    else:
        recent = np.arange(head.P - a["window"], head.P)
        kept = np.append(top(snapkv_scores(head, **a), B - a["window"]), recent)
    return play(head, kept, None, "oneshot")


def layer_budget(B, P, window, beta, layer, n_layers):
    """PyramidKV's tokens of one layer, window included; B is the average.

    B may be real (variant kvpress); a layer that gets B itself rounds it as in step 4, like the package.
    """
    if n_layers == 1:
        return round(B)
    low = B / beta
    high = 2 * B - low
    if high >= P - window:
        high = P - window
        low = 2 * B - high
    if not P >= high >= low >= window:
        return round(B)
    return round(high - layer * (high - low) / (n_layers - 1))


def kvfactory_budget(B, P, window, beta, layer, n_layers):
    """The integer form: the window is subtracted first and added afterwards."""
    if P < B:
        return P
    inner = B - window
    if 2 * inner > P:
        return B
    low = inner // beta
    high = 2 * inner - low
    if high >= P - window:
        high = P - window
        low = 2 * inner - high
    steps = (high - low) // (n_layers - 1) if n_layers > 1 else 0
    return (high - layer * steps if n_layers > 1 else inner) + window


def pyramidkv(head, B, seed=0, variant="default", beta=20, **given):
    """PyramidKV: `snapkv` with the budget of the layer."""
    scorer = "kvpress" if variant == "kvpress" else "default"
    window = (PRESETS[scorer] | given).get("window", 32)
    share = kvfactory_budget if variant == "kvfactory" else layer_budget
    if head.P <= B:  # C5: nothing is cut
        return oneshot(head, np.arange(head.P))
    budget = share(B, head.P, window, beta, head.layer, head.n_layers)
    result = snapkv(head, budget, variant=scorer, **given)
    result.extras["budget"] = budget
    return result
