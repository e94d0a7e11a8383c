"""BUZZ: sinks, a recent window, and a beehive of segment winners between them."""

import math
from dataclasses import replace

import numpy as np

from .common import Result, aggregate, causal_probs, replay


def sizes(B, sinks=4, stride=5):
    """Window and threshold of a budget: threshold/window = rho."""
    rho = (stride**2 + 1) / (stride + 1) if stride % 2 else stride - 1
    window = math.floor((B - sinks) / (1 + rho))
    return window, B - sinks - window


def log_factor(log_n, length, t):
    """ln(L)/ln(512), a factor of the logits: L = |C_t| (live) or t + 1 (context)."""
    if log_n == "off":
        return 1.0
    return math.log(length if log_n == "live" else t + 1) / math.log(512)


def causal_scores(head, log_n):
    """Probabilities of prompt row i over tokens 0..i, with the row's log factor: [G, P, P]."""
    if log_n == "off":
        return causal_probs(head, head.P)
    factors = np.array([log_factor(log_n, i + 1, i) for i in range(head.n)])
    return causal_probs(replace(head, q=head.q * factors[:, None]), head.P)


class Hive:
    """Steps 2 to 5 on a live list; c counts the old tokens in its middle."""

    def __init__(self, sinks, window, threshold, stride, fires_at, mode):
        self.sinks, self.window, self.stride, self.mode = sinks, window, stride, mode
        self.half = (stride + 1) // 2
        self.least = threshold + (fires_at == "reference")  # reference: > T, paper: >= T
        self.c = 0

    def fires(self, live):
        return len(live) > self.sinks + self.window and len(live) - self.sinks - self.window >= self.least

    def shrink(self, live, A):
        middle = live[self.sinks : len(live) - self.window]
        old, new = middle[: self.c], middle[self.c :]
        old = old[:: self.stride if self.mode == "swap" else self.half]
        if self.mode == "no_max":
            new = new[:: self.stride]
        else:
            length = self.half if self.mode == "swap" else self.stride
            segments = [new[i : i + length] for i in range(0, len(new), length)]
            new = np.array([s[int(np.argmax(A[s]))] for s in segments], dtype=int)
        self.c = len(old) + len(new)
        return np.concatenate([live[: self.sinks], old, new, live[len(live) - self.window :]])


def buzz(
    head,
    B,
    seed=0,
    sinks=4,
    stride=5,
    window=None,
    threshold=None,
    variant="reference",
    mode="local_max",
    prefill_passes=None,
    log_n="off",
    positions="original",
    agg="sum",
):
    """BUZZ; sizes follow from B unless both window and threshold are set."""
    if window is None:
        window, threshold = sizes(B, sinks, stride)
    passes = prefill_passes or {"reference": "single", "paper": "until_fit"}[variant]
    hive = Hive(sinks, window, threshold, stride, variant, mode)
    x = aggregate(causal_scores(head, log_n), agg)
    A = np.zeros(head.n)
    if passes == "chunked":
        # Our reading: before a chunk's pass, its rows vote with their exact causal probabilities (C5).
        live = np.zeros(0, dtype=int)
        for first in range(0, head.P, threshold):
            chunk = np.arange(first, min(first + threshold, head.P))
            A[: head.P] += x[chunk].sum(axis=0)
            live = np.append(live, chunk)
            if hive.fires(live):
                live = hive.shrink(live, A)
    else:
        A[: head.P] = x.sum(axis=0)
        live = np.arange(head.P)
        if hive.fires(live):
            live = hive.shrink(live, A)
        while passes == "until_fit" and hive.fires(live):
            smaller = hive.shrink(live, A)
            if len(smaller) == len(live):
                break
            live = smaller

    def evict(t, live, p):
        A[live] += aggregate(p, agg)
        return hive.shrink(live, A) if hive.fires(live) else live

    kept, out = replay(head, live, evict, positions, lambda t, live: log_factor(log_n, len(live), t))
    return Result(kept, out, extras={"window": window, "threshold": threshold})
