"""window, local, streaming_llm and the two static patterns."""

import math

import numpy as np

from .common import Result, aggregate, causal_probs, play, replay, top


def window(head, B, seed=0, phase="stream", positions="original", order="attend_then_evict"):
    """The last B tokens, the newest included."""
    start = np.arange(head.P)[-B:] if head.P > B else np.arange(head.P)
    return play(head, start, lambda t, live, p: live[-B:], phase, positions, order=order)


def local(head, B, seed=0, variant="default", phase="stream"):
    """`window` under H2O's name. lm_eval keeps W + 1 tokens (taken literally: resident, not attended)."""
    if variant == "buzz":  # sinks + window recent tokens; a gapless window rotates nothing
        return window(head, B, phase=phase, positions="cache")
    return window(head, B + (variant == "lm_eval"), phase=phase)


def streaming_llm(head, B, seed=0, sinks=4, positions="cache", phase="stream", room_for=0, play=play, **more):
    """Keeps the first `sinks` tokens of the trace and the last others. room_for: m leaves B - m."""
    B = B - room_for

    def cut(live):
        if len(live) <= B:
            return live
        first, others = live[live < sinks], live[live >= sinks]
        return np.append(first, others[len(others) - (B - len(first)) :])

    start = cut(np.arange(head.P))
    return play(head, start, lambda t, live, p: cut(live), phase, positions, **more)


def _pattern_replay(head, B, pattern, with_h2o):
    """Keeps the pattern of each step; with_h2o adds the top floor(B/2) by A among the other live tokens."""
    A = np.zeros(head.n)
    A[: head.P] = aggregate(causal_probs(head, head.P)).sum(axis=0)

    def cut(t, live):
        inside = pattern(t, live)
        if with_h2o:
            others = live[~inside]
            inside = inside | np.isin(live, others[top(A[others], B // 2)])
        return live[inside]

    def evict(t, live, p):
        A[live] += aggregate(p)
        return cut(t, live)

    start = np.arange(head.P)
    kept, out = replay(head, cut(head.P - 1, start) if head.P > B else start, evict)
    return Result(kept, out)


def sparse_strided(head, B, seed=0, w=None, l=None, with_h2o=False):  # noqa: E741
    """The last w tokens and every token j with j mod l = l - 1."""
    Bp = B - B // 2 if with_h2o else B
    w = Bp // 2 if w is None else w
    stride = math.ceil(head.n / (Bp - w)) if l is None else l
    return _pattern_replay(head, B, lambda t, live: (live > t - w) | (live % stride == stride - 1), with_h2o)


def fixed_sizes(n, Bp, block=None, c=None):
    """Block length and tail of `sparse_fixed`; c = 0 takes c = 1 and the smallest block that fits."""
    block = Bp // 2 if block is None else block
    c = (Bp - block) // math.ceil(n / block) if c is None else c
    if c > 0:
        return block, c
    for candidate in range(1, Bp + 1):
        if candidate + math.ceil(n / candidate) <= Bp:
            return candidate, 1
    raise ValueError("budget below about 2 sqrt(n)")


def sparse_fixed(head, B, seed=0, l=None, c=None, with_h2o=False):  # noqa: E741
    """The block of the newest token and the last c tokens of each finished block."""
    block, c = fixed_sizes(head.n, B - B // 2 if with_h2o else B, l, c)

    def pattern(t, live):
        return (live // block == t // block) | (live % block >= block - c)

    return _pattern_replay(head, B, pattern, with_h2o)
