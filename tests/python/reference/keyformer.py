"""Keyformer (Gumbel-noise scores) and FastGen (a policy per head)."""

import math

import numpy as np

from .common import Result, aggregate, causal_probs, dots, head_uniform, replay, softmax, top


def keyformer(
    head,
    B=None,
    seed=0,
    recent_frac=0.3,
    tau_init=1.0,
    tau_end=2.0,
    gen_len=None,
    noise=True,
):
    """Keyformer: f sums the softmax of the noisy logits at temperature tau; keeps the last `recent` and the
    top f."""
    B = max(1, math.floor(0.6 * head.P)) if B is None else B
    recent = math.floor(recent_frac * B)
    gen_len = head.n - head.P if gen_len is None else gen_len
    f = np.zeros(head.n)

    def add(t, live, tau):
        logits = head.scale * dots(head.q[:, t], head.k[live])
        if noise:
            u = head_uniform(head, seed, "keyformer", live, np.arange(head.G)[:, None], t)
            logits = logits - np.log(-np.log(np.maximum(u, 2.0**-53)))
        f[live] += softmax(logits / tau).sum(axis=0)

    def cut(live):
        if len(live) <= B:
            return live
        old = len(live) - recent
        return np.append(live[top(f[live[:old]], B - recent)], live[old:])

    def evict(t, live, p):
        add(t, live, tau_init + (t - head.P) * (tau_end - tau_init) / gen_len)
        return cut(live)

    for t in range(head.P):
        add(t, np.arange(t + 1), tau_init)
    kept, out = replay(head, cut(np.arange(head.P)), evict)
    return Result(kept, out)


SPECIAL, PUNCTUATION = 2, 1  # as traces store them


def fastgen(head, B=None, seed=0, classes=None, recovery=0.95, local_frac=0.3, heavy_frac=0.3):
    """FastGen: the cheapest policy whose kept mass over the prompt rows reaches `recovery`.

    Our reading: a policy is one token set, fixed at the end of the prompt; heavy hitters are the top of all
    live tokens, protected ones included; the parts of a policy are united.
    """
    x = aggregate(causal_probs(head, head.P), "mean")
    A = np.zeros(head.n)
    A[: head.P] = x.sum(axis=0) * head.G
    heavy, recent = math.floor(heavy_frac * head.P), math.floor(local_frac * head.P)

    def survivors(policy, t, live):
        stays = classes[live] == SPECIAL
        if policy >= 1:
            stays |= classes[live] == PUNCTUATION
        if policy >= 2:
            stays[top(A[live], heavy)] = True
        if policy >= 3:
            stays |= live > t - recent
        return live if policy == 4 else live[stays]

    prompt = np.arange(head.P)
    sets = [survivors(policy, head.P - 1, prompt) for policy in range(5)]
    policy = next(i for i in range(5) if i == 4 or x[:, sets[i]].sum(axis=1).mean() >= recovery)

    def evict(t, live, p):
        A[live] += aggregate(p)
        return survivors(policy, t, live)

    kept, out = replay(head, sets[policy], evict)
    return Result(kept, out, extras={"policy": policy})
