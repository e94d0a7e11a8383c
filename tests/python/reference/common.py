"""Conventions that all reference methods share (C1..C16 of the method definitions).

Everything is float64, one kv head at a time, with loops where loops are clearer.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np


@dataclass
class Rope:
    """Rotary embedding with one frequency per pair, after any scaling; pairs are half-split or interleaved.

    factor: cosine and sine were multiplied by it (YaRN's attention factor).
    """

    inv_freq: np.ndarray
    layout: str = "half_split"
    factor: float = 1.0


@dataclass(eq=False)
class Head:
    """One kv head with its G query heads (C1). A token's position is its index. Compared by identity."""

    q: np.ndarray  # [G, n, d]
    k: np.ndarray  # [n, d]
    v: np.ndarray  # [n, dv]
    scale: float
    P: int
    layer: int = 0
    kv_head: int = 0
    n_layers: int = 1
    rope: Rope | None = None
    prompt_rank: int = 0
    o_proj: np.ndarray | None = None  # [G, dv, hidden]: the head's part of the output projection

    def __post_init__(self):
        self.q, self.k, self.v = (np.asarray(x, dtype=np.float64) for x in (self.q, self.k, self.v))

    @property
    def G(self):
        return self.q.shape[0]

    @property
    def n(self):
        return self.k.shape[0]

    @property
    def d(self):
        return self.k.shape[1]

    @property
    def dv(self):
        return self.v.shape[1]

    @lru_cache(maxsize=32)  # noqa: B019  (what is computed of a head is kept with it)
    def of_query_head(self, g):
        """A head with query head g only (`gqa.level: query`)."""
        o_proj = None if self.o_proj is None else self.o_proj[g : g + 1]
        return replace(self, q=self.q[g : g + 1], o_proj=o_proj)


@dataclass
class Result:
    """The kept sets and outputs of a method.

    kept: ascending index arrays, one after the prompt, then one per decode step (one-shot: only the first;
    all later tokens are kept). num, den: weights of the entries of each kept list, None = all 1. out: [G, n -
    P, dv]. attended: one index array per decode row, for query-time methods.
    """

    kept: list | None
    out: np.ndarray
    num: list | None = None
    den: list | None = None
    attended: list | None = None
    extras: dict = field(default_factory=dict)


class EmptyDenominator(ValueError):
    """The denominator of the estimator C7 is empty: a reported failure."""


# --- Attention -------------------------------------------------------------------------------------------


def dots(q, k):
    """Inner products of queries [..., d] with keys [m, d]; one summation order, so that equal keys tie
    exactly."""
    return np.einsum("...d,md->...m", q, k)


def softmax(logits):
    """Softmax along the last axis; -inf entries get 0."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@lru_cache(maxsize=32)
def causal_probs(head, rows=None):
    """x_t(i) for the first `rows` rows (default all): [G, rows, rows], 0 above the diagonal."""
    rows = head.n if rows is None else rows
    if rows == 0:
        return np.zeros((head.G, 0, 0))
    logits = head.scale * dots(head.q[:, :rows], head.k[:rows])
    probs = softmax(np.where(np.tril(np.ones((rows, rows), dtype=bool)), logits, -np.inf))
    probs.flags.writeable = False  # shared by all callers
    return probs


def exact_out(head):
    """Exact causal attention of the decode rows: [G, n - P, dv]."""
    return causal_probs(head)[:, head.P :] @ head.v


def log_normaliser(head):
    """ln Z_t of the decode rows: [G, n - P]."""
    out = np.empty((head.G, head.n - head.P))
    for t in range(head.P, head.n):
        logits = head.scale * dots(head.q[:, t], head.k[: t + 1])
        out[:, t - head.P] = np.logaddexp.reduce(logits, axis=1)
    return out


def weighted_sums(logits, values, a, b):
    """C7 for logits [..., m]: sum a e^(l-s) v and sum b e^(l-s) with a common shift s of each row."""
    with np.errstate(divide="ignore"):
        shift = (logits + np.log(np.maximum(a, b))).max(axis=-1, keepdims=True)
        num = np.exp(logits + np.log(a) - shift)
        den = np.exp(logits + np.log(b) - shift)
    return num @ values, den.sum(axis=-1, keepdims=True)


def weighted_output(q, keys, values, a, b, scale, seen=True):
    """C7: sum a e^l v / sum b e^l for queries [..., d]; seen: mask of the keys that each query attends to."""
    if len(keys) == 0 or not np.any(np.asarray(b) > 0):
        raise EmptyDenominator
    logits = np.where(seen, scale * dots(q, keys), -np.inf)
    num, den = weighted_sums(logits, values, np.asarray(a, float), np.asarray(b, float))
    return num / den


def ratio_output(q, numerator, denominator, scale):
    """C7 with different entries: numerator = (keys, values, a), denominator = (keys, b)."""
    (keys_n, values, a), (keys_d, b) = numerator, denominator
    if len(keys_d) == 0 or not np.any(np.asarray(b) > 0):
        raise EmptyDenominator
    keys = np.concatenate([keys_n, keys_d])
    values = np.concatenate([values, np.zeros((len(keys_d), values.shape[1]))])
    a = np.concatenate([a, np.zeros(len(keys_d))])
    b = np.concatenate([np.zeros(len(keys_n)), b])
    return weighted_output(q, keys, values, a, b, scale)


# --- Selection -------------------------------------------------------------------------------------------


def top(scores, m):
    """C8: positions of the m largest scores, ties to the lower position, in ascending order."""
    return np.sort(np.argsort(-np.asarray(scores, dtype=float), kind="stable")[: max(0, m)])


def bottom(scores, m):
    """C8 for "the m smallest are kept": ties to the lower position, in ascending order."""
    return top(-np.asarray(scores, dtype=float), m)


def aggregate(x, agg="sum"):
    """C9: combines the values of the group (axis 0)."""
    return {"sum": x.sum(axis=0), "mean": x.mean(axis=0), "max": x.max(axis=0), "first": x[0]}[agg]


def farthest_first(points, m, start=0):
    """Farthest-first traversal: m positions in the order of selection; ties to the lowest."""
    order = []
    nearest = np.full(len(points), np.inf)
    while len(order) < m:
        i = start if not order else int(np.argmax(nearest))
        order.append(i)
        nearest = np.minimum(nearest, np.sqrt(((points - points[i]) ** 2).sum(axis=1)))
        nearest[order] = -1.0  # a selected point is never selected again
    return np.array(order, dtype=int)


# --- Randomness ------------------------------------------------------------------------------------------

STRUCTURES = {
    "subgen_clusters": 1,
    "subgen_reservoir": 2,
    "sign_walk": 3,
    "uniform": 4,
    "keyformer": 5,
    "halving_walk": 6,
    "halving_flip": 7,
    "sketch": 8,
    "pivots": 9,
    "kcenter_start": 10,
    "distance_pairs": 11,
    "bootstrap": 12,
    "synthetic": 13,
}
_LOW = np.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Philox4x32-10: four 32-bit words per counter. counter: 4 arrays, key: 2 words."""
    x = list(np.broadcast_arrays(*(np.asarray(c, dtype=np.uint64) & _LOW for c in counter)))
    k0, k1 = (np.uint64(int(k) & 0xFFFFFFFF) for k in key)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        hi0, lo0, hi1, lo1 = p0 >> np.uint64(32), p0 & _LOW, p1 >> np.uint64(32), p1 & _LOW
        x = [hi1 ^ x[1] ^ k0, lo1, hi0 ^ x[3] ^ k1, lo0]
        k0, k1 = (np.uint64((int(k) + w) & 0xFFFFFFFF) for k, w in ((k0, 0x9E3779B9), (k1, 0xBB67AE85)))
    return x


def uniform(seed, prompt, layer, kv_head, structure, position, slot=0, round=0):
    """C13: uniforms in [0, 1); position, slot and round may be arrays that broadcast."""
    structure = STRUCTURES.get(structure, structure)
    where = np.asarray(round) * 256 + structure
    x = philox((slot, position, where, layer * 65536 + kv_head), (seed, prompt))
    whole = (x[0] >> np.uint64(5)) * np.uint64(1 << 26) + (x[1] >> np.uint64(6))
    return whole.astype(np.float64) / float(1 << 53)


def head_uniform(head, seed, structure, position, slot=0, round=0):
    """The uniforms of one head's array."""
    return uniform(seed, head.prompt_rank, head.layer, head.kv_head, structure, position, slot, round)


# --- Positions -------------------------------------------------------------------------------------------


def rotate(x, by, rope):
    """Rotates vectors x [m, d] forward by `by` [m] positions; dimensions beyond the pairs are unchanged."""
    half = len(rope.inv_freq)
    angle = np.asarray(by, dtype=float)[:, None] * rope.inv_freq
    cos, sin = np.cos(angle), np.sin(angle)
    if rope.layout == "half_split":
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    out = np.array(x, dtype=float)
    out[:, first] = x[:, first] * cos - x[:, second] * sin
    out[:, second] = x[:, first] * sin + x[:, second] * cos
    return out


def live_keys(head, t, live, positions="original"):
    """C14: keys of the live tokens as row t sees them."""
    keys = head.k[live]
    if positions == "original" or head.rope is None:
        return keys
    slots = np.arange(len(live))
    return rotate(keys, (t - live) - (len(live) - 1 - slots), head.rope)


# --- Replay ----------------------------------------------------------------------------------------------


def attend(head, t, live, positions="original", factor=1.0):
    """Attention of row t over its live tokens: probabilities [G, m] and outputs [G, dv]."""
    p = softmax(factor * head.scale * dots(head.q[:, t], live_keys(head, t, live, positions)))
    return p, p @ head.v[live]


def replay(head, start, evict=None, positions="original", factor=None, order="attend_then_evict"):
    """C4: appends, attends, and keeps the survivors that `evict(t, live, p)` returns. Without `evict` all
    stay.

    Returns the kept lists (the first is `start`) and the outputs. With `order: evict_then_attend` the output
    is over the survivors; this suits rules that use no score of the row, and changes nothing else.
    """
    live, kept, outs = np.asarray(start, dtype=int), [np.asarray(start, dtype=int)], []
    for t in range(head.P, head.n):
        live = np.append(live, t)
        p, out = attend(head, t, live, positions, factor(t, live) if factor else 1.0)
        if evict is not None:
            live = np.asarray(evict(t, live, p), dtype=int)
        if order == "evict_then_attend":
            _, out = attend(head, t, live, positions, factor(t, live) if factor else 1.0)
        outs.append(out)
        kept.append(live)
    return kept, stack(head, outs)


def stack(head, outs):
    """Per-row outputs [G, dv] as one array [G, rows, dv]."""
    return np.stack(outs, axis=1) if outs else np.zeros((head.G, 0, head.dv))


def oneshot(head, kept, num=None, den=None, positions="original", extras=None):
    """C6 oneshot: `kept` (with weights) after the prompt, every later token exact."""
    kept = np.asarray(kept, dtype=int)
    a = np.ones(len(kept)) if num is None else np.asarray(num, dtype=float)
    b = a if den is None else np.asarray(den, dtype=float)
    rows = np.arange(head.P, head.n)
    live, ones = np.append(kept, rows), np.ones(len(rows))
    a_live, b_live = np.append(a, ones), np.append(b, ones)

    def row(t):
        m = len(kept) + 1 + t - head.P
        keys = live_keys(head, t, live[:m], positions)
        return weighted_output(head.q[:, t], keys, head.v[live[:m]], a_live[:m], b_live[:m], head.scale)

    if positions == "original" or head.rope is None:  # all rows see equal keys
        queries, seen = head.q[:, head.P :], (live < head.P) | (live <= rows[:, None])
        out = weighted_output(queries, head.k[live], head.v[live], a_live, b_live, head.scale, seen)
    else:
        out = stack(head, [row(t) for t in rows])
    weighted = num is not None
    return Result(
        kept=[kept],
        out=out,
        num=[a] if weighted else None,
        den=[b] if weighted else None,
        extras=extras or {},
    )


def play(head, start, evict, phase="stream", positions="original", **more):
    """Cuts the prompt to `start`; a streaming method evicts later, too, a one-shot method does not."""
    if phase == "oneshot":
        return oneshot(head, start, positions=positions)
    return Result(*replay(head, start, evict, positions, **more))


def query_time(head, attended):
    """Plain attention over the attended set of each decode row; a list as entry has one set per head."""
    outs = []
    for t, live in enumerate(attended, start=head.P):
        if not isinstance(live, list):
            outs.append(softmax(head.scale * dots(head.q[:, t], head.k[live])) @ head.v[live])
            continue
        rows = [
            softmax(head.scale * dots(q[t], head.k[s])) @ head.v[s] for q, s in zip(head.q, live, strict=True)
        ]
        outs.append(np.array(rows))
    return stack(head, outs)


def per_query_head(method, head, *args, **params):
    """`gqa.level: query`: every query head has a separate set; results follow head by head."""
    parts = [method(head.of_query_head(g), *args, **params) for g in range(head.G)]

    def joined(name):
        lists = [getattr(p, name) for p in parts]
        return None if lists[0] is None else [x for part in lists for x in part]

    return Result(
        kept=joined("kept"),
        out=np.concatenate([p.out for p in parts]),
        num=joined("num"),
        den=joined("den"),
        attended=joined("attended"),
        extras={"parts": parts},
    )


def streamed_prompt(method, head, *args, **params):
    """`replay.prompt: stream` (C5): replays the prompt as decode steps from token 0; its rows are not
    scored."""
    result = method(replace(head, P=0), *args, **params)
    return Result(kept=result.kept[head.P :], out=result.out[:, head.P :], extras=result.extras)
