"""BalanceKV and its comparisons: uniform samples, the self-balancing walk, both forms of the cache."""

import math

import numpy as np

from .common import Result, head_uniform, oneshot, ratio_output, stack, top


class WalkFailed(ValueError):
    """|y| > c r^2 at `index`."""

    def __init__(self, index):
        super().__init__(f"the walk failed at vector {index}")
        self.index = index


def protected(B, sinks=None, recent=None, large=256):
    """Sinks and recents of `uniform` and `balancekv`. Defaults if both are missing: 4 and floor(B/4) below B
    = 1024."""
    if sinks is None and recent is None and B is not None and B < 1024:
        return 4, B // 4
    return large if sinks is None else sinks, large if recent is None else recent


def split(head, sinks, recent):
    """Sinks, middle and recents of the prompt."""
    tokens = np.arange(head.P)
    end = max(head.P - recent, min(sinks, head.P))
    return tokens[:sinks], tokens[sinks:end], tokens[end:] if end >= sinks else tokens[:0]


def with_protected(head, parts, middle, w, b=None):
    """A one-shot result: protected tokens with weight 1 around the weighted middle."""
    first, _, last = parts
    kept = np.concatenate([first, middle, last])
    one_first, one_last = np.ones(len(first)), np.ones(len(last))
    num = np.concatenate([one_first, w, one_last])
    return oneshot(head, kept, num, None if b is None else np.concatenate([one_first, b, one_last]))


# --- uniform ---------------------------------------------------------------------------------------------


def uniform(
    head,
    B,
    seed=0,
    sinks=None,
    recent=None,
    m=None,
    rounds=None,
    weights="ratio",
    tail=0,
    variant="default",
    u=None,
    block=256,
):
    """The m middle tokens with the smallest u; variants: coin and notebook."""
    if variant == "coin":
        return balancekv(head, B, seed, sinks=sinks, recent=recent, rounds=rounds, block=block, gamma=0.0)
    sinks, recent = protected(B, sinks, recent)
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    parts = split(head, sinks, recent)
    middle = parts[1]
    M = len(middle)
    if variant == "notebook":
        return with_protected(head, parts, *notebook(head, middle, rounds, block, seed))
    if m is None:
        m = B - sinks - recent if rounds is None else M // 2**rounds
    u = head_uniform(head, seed, "uniform", np.arange(M)) if u is None else u[:M]
    drawn = top(-u[: M - tail], m - tail)
    factor = {"ratio": (M - tail) / max(m - tail, 1), "none": 1.0, "pow2": 2.0 ** (rounds or 0)}[weights]
    keep = np.append(drawn, np.arange(M - tail, M))
    return with_protected(head, parts, middle[keep], np.where(keep < M - tail, factor, 1.0))


def notebook(head, middle, rounds, block, seed):
    """Fair coins, the first of each block +, stable sort (- before +), first half kept, weight 2^rounds.

    Survivors enter the next round in the order of that sort. Our reading: ascending sort of the signs;
    structure 4 with the round; half = floor(m/2).
    """
    ids = middle
    for r in range(rounds):
        u = head_uniform(head, seed, "uniform", np.arange(len(ids)), 0, r)
        sign = np.where(u < 0.5, 1, -1)
        sign[::block] = 1
        ids = ids[np.argsort(sign, kind="stable")[: len(ids) // 2]]
    return np.sort(ids), np.full(len(ids), 2.0**rounds)


# --- the bare walk ---------------------------------------------------------------------------------------


def sign_walk(K, U, c, on_fail="fail"):
    """Signs and probabilities of the walk with Gram matrix K, and the index of the failure or -1. c includes
    r^2.

    After a failure with `fail` the remaining signs and probabilities are 0.
    """
    n = len(K)
    sign, p = np.zeros(n), np.zeros(n)
    for i in range(n):
        y = K[i, :i] @ sign[:i]
        chance = 0.5 - y / (2 * c)
        if abs(y) > c:
            if on_fail == "fail":
                return sign, p, i
            chance = 0.5 if on_fail == "coin" else min(max(chance, 0.0), 1.0)
        p[i] = chance
        sign[i] = 1.0 if U[i] < chance else -1.0
    return sign, p, -1


def smaller_class(sign):
    """Positions of the smaller sign class; + if both are equally large."""
    plus, minus = np.flatnonzero(sign > 0), np.flatnonzero(sign < 0)
    return plus if len(plus) <= len(minus) else minus


def walk_constant(n, delta=None):
    """30 ln(n/delta), delta = 1/n^2; n = tokens of the trace."""
    delta = n**-2.0 if delta is None else delta
    return 30 * math.log(n / delta)


def normalised_kernel(keys, values, scale, r_value2=None):
    """exp(scale (<ki,kj> - max||k||^2)) <vi,vj> / r_value^2; all zero if every value is zero."""
    if r_value2 is None:
        r_value2 = (values**2).sum(axis=1).max(initial=0.0)
    if r_value2 == 0.0:
        return np.zeros((len(keys), len(keys)))
    largest = (keys**2).sum(axis=1).max(initial=0.0)
    return np.exp(scale * (keys @ keys.T - largest)) * (values @ values.T) / r_value2


def walk_kernel(keys, values, kernel, scale, r=None):
    """Gram matrix and r^2 of one walk."""
    if kernel == "expv":
        return normalised_kernel(keys, values, scale), 1.0
    K = keys @ keys.T
    if kernel == "kv":
        K = K * (values @ values.T)
    measured = np.sqrt(np.diag(K)).max(initial=0.0)
    return K, (measured if r is None else r) ** 2


def self_balancing_walk(
    head,
    B,
    seed=0,
    sinks=None,
    recent=None,
    kernel="expv",
    delta=None,
    c=None,
    r=None,
    on_fail="fail",
    rounds=1,
    U=None,
):
    """The walk on the middle, `rounds` times on the survivors, weight 2^rounds."""
    sinks, recent = protected(B, sinks, recent)
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    parts = split(head, sinks, recent)
    ids = parts[1]
    c = walk_constant(head.n, delta) if c is None else c
    for t in range(rounds):
        K, r2 = walk_kernel(head.k[ids], head.v[ids], kernel, head.scale, r)
        u = head_uniform(head, seed, "sign_walk", np.arange(len(ids)), 0, t) if U is None else U[t]
        sign, _, failed = sign_walk(K, u, c * r2, on_fail)
        if failed >= 0:
            raise WalkFailed(failed)
        ids = ids[smaller_class(sign)]
    return with_protected(head, parts, ids, np.full(len(ids), 2.0**rounds))


# --- balancekv -------------------------------------------------------------------------------------------


def rounds_for(B, P, sinks, recent):
    """The smallest T with sinks + recent + floor(M/2^T) <= B; 1 without a budget."""
    if B is None:
        return 1
    M = max(0, P - sinks - recent)
    return next(T for T in range(64) if (T == 0 and P <= B) or (T > 0 and sinks + recent + M // 2**T <= B))


def balancekv(
    head,
    B,
    seed=0,
    preset=None,
    sinks=None,
    recent=None,
    rounds=None,
    block=None,
    gamma=4.0,
    tau=None,
    beta=0.0,
    c0=0.025,
    den="code",
    walk="reference",
    c=None,
    delta=None,
    temp=1.0,
    U=None,
):
    """Halves the middle `rounds` times. Our reading: `preset: longbench` counts as setting sinks and
    recent."""
    if preset == "longbench":
        sinks, recent = 32 if sinks is None else sinks, 32 if recent is None else recent
        rounds = 2 if rounds is None else rounds
    sinks, recent = protected(B, sinks, recent)
    block = {"longbench": 128}.get(preset, 256) if block is None else block
    tau = {"longbench": 1.0}.get(preset, 0.1) if tau is None else tau
    rounds = rounds_for(B, head.P, sinks, recent) if rounds is None else rounds
    parts = split(head, sinks, recent)
    ids, w = parts[1], np.ones(len(parts[1]))
    signs = []
    for t in range(rounds):
        padded = -(-len(ids) // block) * block
        u = head_uniform(head, seed, "sign_walk", np.arange(padded), 0, t) if U is None else U[t]
        if walk == "paper":
            keep = paper_round(head, ids, u, block, c, delta, temp)
            ids, w = ids[keep], 2 * w[keep]
        else:
            sign = reference_signs(head, ids, w, u, block, gamma, tau, beta, c0)
            keep, doubled = truncate(sign)
            ids, w = ids[keep], np.where(doubled, 2, 1) * w[keep]
            signs.append(sign)
    b = None if den == "w" or walk == "paper" else np.full(len(ids), 2.0**rounds)
    result = with_protected(head, parts, ids, w, b)
    result.extras = {"signs": signs, "rounds": rounds, "middle": ids, "w": w}
    return result


def reference_signs(head, ids, w, u, block, gamma, tau, beta, c0):
    """Steps 1 to 4 of the released walk: blocks padded with zero rows, centred keys."""
    m = len(ids)
    padding = -m % block
    k = np.concatenate([head.k[ids], np.zeros((padding, head.d))])
    v = np.concatenate([head.v[ids] * w[:, None], np.zeros((padding, head.dv))])
    sign = np.ones(m + padding)
    for first in range(0, m + padding, block):
        rows = slice(first, first + block)
        kc = k[rows] - k[rows].mean(axis=0)
        gram = np.exp(tau * (kc @ kc.T) / math.sqrt(head.d) - beta) * (v[rows] @ v[rows].T + c0 + 1e-8)
        e = sign[rows]
        for i in range(1, block):
            y = gram[i, :i] @ e[:i]
            e[i] = 1.0 if u[first + i] < 0.5 - gamma * y else -1.0
    return sign[:m]


def truncate(sign):
    """Steps 5 and 6: kept positions, and whether their weight doubles."""
    h = len(sign) // 2

    def reaches(value):
        counts = np.cumsum(sign == value)
        return int(np.argmax(counts >= h)) if np.any(counts >= h) else 0

    if len(sign) == 0:
        return np.zeros(0, dtype=int), np.zeros(0, dtype=bool)
    cut = max(reaches(-1), reaches(1))
    at = np.arange(len(sign))
    keep = np.flatnonzero(((at <= cut) & (sign == -sign[cut])) | (at > cut))[:h]
    return keep, keep <= cut


def paper_round(head, ids, u, block, c, delta, temp):
    """One halving by the paper's walk: floor(m/2) of each block."""
    c = walk_constant(head.n, delta) if c in (None, "theory") else 0.0 if c == "greedy" else c
    keep = []
    for first in range(0, len(ids), block):
        part = ids[first : first + block]
        K = normalised_kernel(head.k[part], head.v[part], head.scale * temp)
        sign = np.zeros(len(part))
        for i in range(len(part)):
            y = K[i, :i] @ sign[:i]
            p = float(y <= 0) if c == 0 else min(max(0.5 - y / (2 * c), 0.0), 1.0)
            sign[i] = 1.0 if u[first + i] < p else -1.0
        small = smaller_class(sign)
        others = np.setdiff1d(np.arange(len(part)), small)
        half = len(part) // 2
        keep.append(first + np.sort(np.append(small, others[: half - len(small)])[:half]))
    return np.concatenate(keep) if keep else np.zeros(0, dtype=int)


# --- balancekv_stream ------------------------------------------------------------------------------------


class MergeAndReduce:
    """Levels of (token, ...) lists; the smaller class of a full level moves one level up."""

    def __init__(self, batch, levels, halve):
        self.batch, self.levels, self.halve = batch, [[] for _ in range(levels + 1)], halve
        self.count = 0

    def append(self, token):
        self.levels[0].append(token)
        self.count += 1
        if self.count % self.batch:
            return
        p, i = self.count // self.batch, 0
        while i < len(self.levels) - 1:
            self.levels[i + 1] += self.halve(self.levels[i], i)
            self.levels[i] = []
            i += 1
            if p % 2:
                break
            p //= 2

    def entries(self):
        """Tokens and weights 2^level."""
        ids = [t for level in self.levels for t in level]
        w = [2.0**i for i, level in enumerate(self.levels) for _ in level]
        return np.array(ids, dtype=int), np.array(w)


def bucket_of(norm):
    """i with 2^(i-1) < norm <= 2^i."""
    mantissa, exponent = math.frexp(norm)
    return exponent - 1 if mantissa == 0.5 else exponent


def balancekv_stream(
    head,
    B=None,
    seed=0,
    batch=256,
    levels=None,
    epsilon=0.1,
    delta=None,
    c=None,
    on_fail="fail",
    r=None,
    centre_keys=False,
    bucket_erase=True,
    U=None,
):
    """Algorithms 1 to 3: buckets of value norms and a denominator, each a MergeAndReduce.

    U [level, token, slot]: the uniforms of the walks; slot 0 is the denominator's, 2048 + i that of bucket i.
    """
    keys = head.k - head.k[: head.P].mean(axis=0) if centre_keys else head.k
    levels = max(0, math.ceil(math.log2(head.n / batch))) if levels is None else levels
    c = walk_constant(head.n, delta) if c is None else c
    if r is None:
        r = max(np.sqrt((x**2).sum(axis=-1)).max() for x in (keys, head.q))
    log_floor = math.log(epsilon / (2 * head.n)) - r**2 / math.sqrt(head.d)

    def halver(values, r_value2, slot):
        def halve(ids, level):
            ids = np.array(ids, dtype=int)
            K = normalised_kernel(keys[ids], values[ids], head.scale, r_value2)
            u = head_uniform(head, seed, "sign_walk", ids, slot, level) if U is None else U[level, ids, slot]
            sign, _, failed = sign_walk(K, u, c, on_fail)
            if failed >= 0:
                raise WalkFailed(int(ids[failed]))
            return list(ids[smaller_class(sign)])

        return halve

    denominator = MergeAndReduce(batch, levels, halver(np.ones((head.n, 1)), 1.0, 0))
    buckets, norms, largest, outs, erased = {}, np.sqrt((head.v**2).sum(axis=1)), 0.0, [], 0
    for t in range(head.n):
        denominator.append(t)
        if norms[t] > 0:
            i = bucket_of(norms[t])
            if i not in buckets:
                buckets[i] = MergeAndReduce(batch, levels, halver(head.v, 4.0**i, i + 2048))
            buckets[i].append(t)
            largest = max(largest, norms[t])
        if bucket_erase and largest > 0:
            for i in [i for i in buckets if i * math.log(2) <= log_floor + math.log(largest)]:
                del buckets[i]
                erased += 1
        if t >= head.P:
            outs.append(_stream_row(head, keys, t, buckets, denominator))
    extras = {
        "buckets": {i: [list(x) for x in b.levels] for i, b in sorted(buckets.items())},
        "denominator": [list(x) for x in denominator.levels],
        "erased": erased,
        "levels": levels,
    }
    return Result(None, stack(head, outs), extras=extras)


def _stream_row(head, keys, t, buckets, denominator):
    """The ratio of both structures for the G queries of one row."""
    parts = [buckets[i].entries() for i in sorted(buckets)]
    ids = np.concatenate([p[0] for p in parts] + [np.zeros(0, dtype=int)])
    a = np.concatenate([p[1] for p in parts] + [np.zeros(0)])
    ids_d, b = denominator.entries()
    numerator = (keys[ids], head.v[ids], a)
    return ratio_output(head.q[:, t], numerator, (keys[ids_d], b), head.scale)
