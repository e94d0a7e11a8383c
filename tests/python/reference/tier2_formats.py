"""Row formats: what the stored entries look like after quantisation, and the replay that uses them.

A token is exact in the prompt and in its own step; after every step the cache is pruned first, then what
stays is quantised.
"""

import numpy as np

from .common import Result, aggregate, causal_probs, softmax, stack, top
from .tier2_scores import dots


def stored_offset_and_step(low, high, levels):
    """Offset and step as they are stored, in float16."""
    f16 = [np.asarray(x).astype(np.float16).astype(np.float64) for x in (low, (high - low) / levels)]
    return f16[0], f16[1]


def quantise_group(x, levels):
    """One group: codes from the exact extremes, values from the stored offset and step."""
    low, high = x.min(), x.max()
    offset, step = stored_offset_and_step(low, high, levels)
    if high == low:
        return np.full_like(x, offset)
    codes = np.rint(np.clip((x - low) * levels / (high - low), 0, levels))
    return codes * step + offset


def quantise_rows(x, group, levels):
    """Groups of `group` numbers along each row; the last one may be shorter."""
    out = np.empty_like(x)
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], group):
            part = slice(start, start + group)
            out[row, part] = quantise_group(x[row, part], levels)
    return out


def quantise_columns(x, group, levels):
    """Groups of `group` consecutive tokens, channel by channel."""
    return quantise_rows(x.T, group, levels).T


def to_bfloat16(x):
    """Round to nearest even on the upper 16 bits of the float32."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


class Source:
    """The entries of one head as they were written; the base of all formats."""

    def __init__(self, head):
        self.k, self.v = head.k.copy(), head.v.copy()

    def settle(self, live):
        """Called with the survivors after the prompt and after every step."""


class Plain(Source):
    """Formats that treat each token alone: `change` maps rows to rows."""

    def __init__(self, head, change):
        super().__init__(head)
        self.change, self.done = change, set()

    def settle(self, live):
        fresh = [i for i in live if i not in self.done]
        if fresh:
            self.k[fresh], self.v[fresh] = self.change(self.k[fresh]), self.change(self.v[fresh])
            self.done.update(fresh)


class Kivi(Source):
    """KIVI: keys per channel in groups of g tokens once R are collected, values per token after R tokens.

    Groups are formed of the survivors in their order. An evicted token leaves the residual; what has been
    quantised stays as it is.
    """

    def __init__(self, head, bits=4, g=32, R=128):
        super().__init__(head)
        self.levels, self.g, self.R = 2**bits - 1, g, R
        self.key_done, self.value_done = set(), set()

    def settle(self, live):
        waiting = [i for i in live if i not in self.key_done]
        full = len(waiting) - len(waiting) % self.R
        if full:
            self.take_keys(waiting[:full])
        old = [i for i in live[: max(0, len(live) - self.R)] if i not in self.value_done]
        if old:
            self.take_values(old)

    def take_keys(self, tokens):
        self.k[tokens] = self.fit(self.k[tokens], quantise_columns(self.k[tokens], self.g, self.levels))
        self.key_done.update(tokens)

    def take_values(self, tokens):
        self.v[tokens] = self.fit(self.v[tokens], quantise_rows(self.v[tokens], self.g, self.levels))
        self.value_done.update(tokens)

    def fit(self, exact, coded):
        """What is read back for a block with this quantisation."""
        return coded


def orthonormal(x):
    """Gram-Schmidt on the columns; dependent columns become zero."""
    out = np.zeros_like(x)
    for j in range(x.shape[1]):
        column = x[:, j] - out[:, :j] @ (out[:, :j].T @ x[:, j])
        column = column - out[:, :j] @ (out[:, :j].T @ column)
        length = np.sqrt(column @ column)
        if length > 1e-12 * max(1e-300, np.sqrt(x[:, j] @ x[:, j])):
            out[:, j] = column / length
    return out


def low_rank(residual, r):
    """Rank-r approximation by 2 power iterations, started from the first r unit vectors."""
    right = np.eye(residual.shape[1])[:, :r]
    for _ in range(2):
        left = orthonormal(residual @ right)
        right = residual.T @ left
    return left @ right.T


class Gear(Kivi):
    """GEAR: kivi's codes plus a low-rank part of the residual plus the largest residuals exactly.

    The definition leaves three things open. Here a block is what is quantised at one time; the outliers are
    the `outliers` percent (rounded down) of the block's entries that codes and low rank miss most; the power
    iteration starts from unit vectors.
    """

    def __init__(self, head, bits=4, g=32, R=128, rank=4, outliers=2):
        super().__init__(head, bits, g, R)
        self.rank, self.outliers = rank, outliers

    def fit(self, exact, coded):
        rank = min(self.rank, *exact.shape)
        restored = coded + low_rank(exact - coded, rank) if rank else coded.copy()
        left = np.abs(exact - restored).ravel()
        worst = np.argsort(-left, kind="stable")[: int(self.outliers * left.size // 100)]
        restored.ravel()[worst] = exact.ravel()[worst]
        return restored


def make_store(head, row_format=None):
    """The store of a `row_format:` as the configuration writes it."""
    spec = {"name": row_format or "source"} if not isinstance(row_format, dict) else dict(row_format)
    name = spec.pop("name")
    group = spec.pop("group", 64)
    changes = {
        "int4": lambda x: quantise_rows(x, group, 15),
        "int8": lambda x: quantise_rows(x, group, 255),
        "f16": lambda x: x.astype(np.float16).astype(np.float64),
        "bf16": to_bfloat16,
        "f32": lambda x: x.astype(np.float32).astype(np.float64),
    }
    if name in changes:
        return Plain(head, changes[name])
    return {"source": Source, "kivi": Kivi, "gear": Gear}[name](head, **spec)


def attend_stored(head, store, t, live, weight):
    """Row t over its live entries: probabilities [G, m] without weights, and outputs [G, dv]."""
    logits = np.stack([head.scale * dots(store.k[live], q) for q in head.q[:, t]])
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True)) * weight[live]
    return softmax(logits), (shifted / shifted.sum(axis=1, keepdims=True)) @ store.v[live]


def replay_stored(head, start, evict=None, row_format=None, num=None):
    """C4 with a row format: append, attend, `evict(t, live, p, keys)`, quantise the survivors.

    num: weights of the entries of `start`, in both sums. Without `evict` the result is one-shot.
    """
    store = make_store(head, row_format)
    live = np.asarray(start, dtype=int)
    weight = np.ones(head.n)
    if num is not None:
        weight[live] = num
    store.settle(live)
    kept, outs = [live], []
    for t in range(head.P, head.n):
        live = np.append(live, t)
        p, out = attend_stored(head, store, t, live, weight)
        outs.append(out)
        if evict is not None:
            live = np.asarray(evict(t, live, p, store.k), dtype=int)
        store.settle(live)
        kept.append(live)
    lists = kept if evict is not None else kept[:1]
    weights = None if num is None else [weight[s] for s in lists]
    return Result(kept=lists, out=stack(head, outs), num=weights, den=weights)


# --- Tier-1 methods in the little that row formats need -------------------------------------------


def exact(head, row_format=None):
    """Every token stays; with a row format only the quantisation errs."""
    return replay_stored(head, np.arange(head.P), lambda t, live, p, keys: live, row_format)


def window(head, B, row_format=None):
    """The last B tokens."""
    start = np.arange(max(0, head.P - B), head.P)
    return replay_stored(head, start, lambda t, live, p, keys: live[-B:], row_format)


def h2o(head, B, row_format=None, agg="sum"):
    """H2O real drop with equal halves."""
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

    return replay_stored(head, cut(np.arange(head.P)), evict, row_format)
