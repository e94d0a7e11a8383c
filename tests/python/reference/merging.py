"""Merging of evicted rows: CaM, D2O, LOOK-M's pivots, WeightedKV and KVMerger, on top of any eviction.

Sources: CaM (openreview LCTmppB165), D2O (arXiv 2406.13035), LOOK-M (arXiv 2406.18139), WeightedKV
(arXiv 2503.01330), KVMerger (arXiv 2407.08454). A row is a key, a value and the weights of C7 (num, den); a
token has one row at most, which keeps the token's position whatever is merged into it.
"""

from dataclasses import dataclass

import numpy as np

from .common import Result, causal_probs, dots, head_uniform, per_query_head, rotate, stack, weighted_output

STRUCTURE = 17  # number of the random stream of CaM's coin
CHANGES_KEYS = ("d2o", "pivot", "gaussian")


@dataclass
class Rows:
    """All rows of one head, by token.

    received: attention so far, summed over the group; seen: number of rows that attended; last: attention of
    the last of these rows.
    """

    key: np.ndarray  # [n, d]
    value: np.ndarray  # [n, dv]
    num: np.ndarray
    den: np.ndarray
    received: np.ndarray
    seen: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, key, value, received=None, seen=None, last=None):
        key, value = (np.array(x, dtype=float) for x in (key, value))
        n = len(key)
        given = [np.zeros(n) if x is None else np.array(x, dtype=float) for x in (received, seen, last)]
        return cls(key, value, np.ones(n), np.ones(n), *given)

    @classmethod
    def after_prompt(cls, head):
        """All prompt rows have voted, with equal weight of the query heads; later tokens have no attention
        yet."""
        rows = cls.of(head.k, head.v)
        rows.received[: head.P] = causal_probs(head, head.P).sum(axis=(0, 1))
        rows.seen[: head.P] = head.P - np.arange(head.P)
        if head.P:
            rows.last[: head.P] = causal_probs(head, head.P)[:, -1].sum(axis=0)
        return rows

    def hear(self, live, p):
        """Adds the attention p [G, live] of one more row."""
        self.received[live] += p.sum(axis=0)
        self.seen[live] += 1
        self.last[live] = p.sum(axis=0)

    def pour(self, victim, target, share=1.0):
        """`mass: keep`: adds this share of the victim's weights to the target, whose value becomes their
        mean."""
        num = share * self.num[victim]
        both = self.num[target] * self.value[target] + num * self.value[victim]
        self.num[target] += num
        self.den[target] += share * self.den[victim]
        self.value[target] = both / self.num[target]


# --- Rules ------------------------------------------------------------------------------------------


@dataclass
class Merging:
    """A rule and its parameters. tau: D2O's threshold, known from the first cut on."""

    rule: str
    mass: str = "none"
    attention: str = "accumulated"
    targets: int = 32  # CaM's m
    release: bool = False  # D2O's released sums
    threshold: float = 0.75  # KVMerger's threshold for neighbours
    seed: int = 0
    tau: float | None = None

    def __call__(self, head, rows, victims, kept):
        """Merges the victims and returns the rows that stay. Both lists ascend."""
        if self.rule == "gaussian":
            return np.sort(np.append(kept, [self.one_row(rows, run) for run in self.runs(rows, victims)]))
        if len(victims) and len(kept):
            {"cam": self.cam, "d2o": self.d2o, "pivot": self.pivot, "weighted_v": self.weighted_v}[self.rule](
                head, rows, victims, kept
            )
        return kept

    def votes(self, rows):
        return rows.received if self.attention == "accumulated" else rows.last

    def average(self, rows):
        return rows.received / np.maximum(rows.seen, 1) if self.attention == "accumulated" else rows.last

    # CaM: a coin with probability A_i / (mean A of the next m kept rows); on heads, v_i/m is added to each of
    # them.
    def cam(self, head, rows, victims, kept):
        A = self.votes(rows)
        for i in victims:
            right = kept[kept > i][: self.targets]
            if len(right) and head_uniform(head, self.seed, STRUCTURE, i) < chance(A[i], A[right].mean()):
                for j in right:
                    if self.mass == "keep":
                        rows.pour(i, j, 1 / len(right))
                    else:
                        rows.value[j] += rows.value[i] / len(right)

    # WeightedKV: the next kept row's value becomes the mean of both, weighted by average attention.
    def weighted_v(self, head, rows, victims, kept):
        A = self.average(rows)
        for i in victims:
            j = kept[kept > i][0] if kept[-1] > i else kept[-1]
            if self.mass == "keep":
                rows.pour(i, j)
            elif A[i] + A[j] > 0:
                rows.value[j] = (A[i] * rows.value[i] + A[j] * rows.value[j]) / (A[i] + A[j])

    # D2O: victims similar enough to a kept key are merged into it, weighted by e^s; the others are dropped.
    def d2o(self, head, rows, victims, kept):
        s, target = nearest(rows.key, victims, kept)
        self.tau = s.mean() if self.tau is None else (self.tau + s.mean()) / 2
        for j, own in groups(target, s >= self.tau):
            if self.release:
                weights, divisor = np.append(1.0, s[own]), 1 + len(own)
            else:
                weights = np.exp(np.append(1.0, s[own]))
                divisor = weights.sum()
            self.join(rows, j, victims[own], weights / divisor)

    # LOOK-M: the mean of the target and of the midpoints between it and its victims.
    def pivot(self, head, rows, victims, kept):
        _, target = nearest(rows.key, victims, kept)
        for j, own in groups(target, np.ones(len(victims), dtype=bool)):
            c = len(own)
            self.join(rows, j, victims[own], np.append(1 + c / 2, np.full(c, 0.5)) / (1 + c))

    def join(self, rows, j, victims, weights):
        """Key and value of row j become the weighted sum over j and its victims; j's weight is the first."""
        members = np.append(j, victims)
        rows.key[j] = weights @ rows.key[members]
        if self.mass == "none":
            rows.value[j] = weights @ rows.value[members]
            return
        for i in victims:
            rows.pour(i, j)

    # KVMerger: runs of victims in which neighbours are similar.
    def runs(self, rows, victims):
        run = []
        for i in victims:
            if run and not (i == run[-1] + 1 and alike(rows.key[i - 1], rows.key[i]) > self.threshold):
                yield np.array(run)
                run = []
            run.append(i)
        if run:
            yield np.array(run)

    def one_row(self, rows, run):
        """Merges a run into one row at the token with the most attention; nearer keys get more weight."""
        p = run[np.argmax(self.votes(rows)[run])]
        others = run[run != p]
        if len(others):
            squares = ((rows.key[run] - rows.key[p]) ** 2).sum(axis=1)
            s = np.sqrt(squares).sum() / len(others)
            g = np.exp(-squares / (2 * s**2)) if s > 0 else np.ones(len(run))
            g /= g.sum()
            self.join(rows, p, others, np.append(g[run == p], g[run != p]))
        return p


def chance(a, mean):
    """CaM's probability: a/mean, clipped to [0, 1], 0/0 = 0."""
    return 0.0 if a == 0 else 1.0 if a >= mean else a / mean


def cosines(x, y):
    """Cosines [len(x), len(y)]; 0 for vectors of length 0."""
    lengths = np.sqrt(np.outer((x * x).sum(axis=1), (y * y).sum(axis=1)))
    return np.divide(dots(x, y), lengths, out=np.zeros(lengths.shape), where=lengths > 0)


def alike(x, y):
    """Cosine of two vectors."""
    return cosines(x[None], y[None])[0, 0]


def nearest(key, victims, kept):
    """Largest cosine of each victim with the kept keys, and that key's token; ties to the lower token."""
    found = cosines(key[victims], key[kept])
    return found.max(axis=1), kept[found.argmax(axis=1)]


def groups(target, merged):
    """(target, mask of its victims) for every target that has any."""
    for j in np.unique(target[merged]):
        yield j, np.flatnonzero(merged & (target == j))


# --- Replay -----------------------------------------------------------------------------------------


def attend(head, rows, t, live, positions="original"):
    """Attention of row t over rows: probabilities [G, live], weighted by den, and outputs [G, dv]."""
    keys = rows.key[live]
    if positions == "cache" and head.rope is not None:
        keys = rotate(keys, (t - live) - (len(live) - 1 - np.arange(len(live))), head.rope)
    num, den, values = rows.num[live], rows.den[live], rows.value[live]
    out = weighted_output(head.q[:, t], keys, values, num, den, head.scale)
    logits = head.scale * dots(head.q[:, t], keys)
    e = den * np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True), out


def player(merging):
    """A `play` that merges the evicted rows."""

    def play(head, start, evict, phase="stream", positions="original"):
        if merging.rule in CHANGES_KEYS and positions == "cache":
            raise ValueError("merged keys have no position of their own: positions: original")
        if merging.rule == "gaussian" and phase == "stream":
            raise ValueError("gaussian merges one cut: phase: oneshot")
        rows = Rows.after_prompt(head)
        live = merging(head, rows, np.setdiff1d(np.arange(head.P), start), np.sort(start).astype(int))
        kept, weights, outs = [live], [(rows.num[live], rows.den[live])], []
        for t in range(head.P, head.n):
            live = np.append(live, t)
            p, out = attend(head, rows, t, live, positions)
            outs.append(out)
            rows.hear(live, p)
            if phase == "stream":
                stay = np.asarray(evict(t, live, p), dtype=int)
                live = merging(head, rows, np.setdiff1d(live, stay), stay)
                kept.append(live)
                weights.append((rows.num[live], rows.den[live]))
        num, den = (list(x) for x in zip(*weights, strict=True))
        return Result(kept, stack(head, outs), num, den, extras={"rows": rows, "tau": merging.tau})

    return play


def merged(base, head, B, merge, level="kv", seed=0, options=None, **more):
    """`base` at budget B with merged victims; `options` belong to the rule, `more` to the base."""
    if level == "query":
        return per_query_head(lambda one: merged(base, one, B, merge, "kv", seed, options, **more), head)
    return base(head, B, play=player(Merging(merge, seed=seed, **(options or {}))), **more)
