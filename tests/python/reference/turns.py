"""Texts with turns and branches in numpy: inputs arrive at once, outputs token by token (docs/serving.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


@dataclass
class Head:
    """One kv head of a text: q [G, T, d], k [T, d], v [T, dv]."""

    q: Array
    k: Array
    v: Array

    def attend(self, t: int, live: Sequence[int]) -> tuple[Array, Array]:
        """Probabilities [G, len(live)] of row t over the live tokens, and its outputs [G, dv]."""
        logits = self.q[:, t] @ self.k[live].T / np.sqrt(self.k.shape[1])
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return p, p @ self.v[live]


class Scores:
    """Scores of live tokens: norms (knorm), positions, sums of probabilities (h2o), the last row's (tova), or
    those of the last w rows, computed anew over the live tokens at each cut (snapkv without pooling)."""

    def __init__(self, rule: str, head: Head, window: int = 0) -> None:
        self.rule, self.head, self.window = rule, head, window
        self.sums = np.zeros(len(head.k))
        self.last = np.zeros(len(head.k))

    def observe(self, live: Sequence[int], p: Array) -> None:
        self.sums[live] += p.sum(axis=0)
        self.last[:] = 0
        self.last[live] = p.sum(axis=0)

    def of(self, live: Sequence[int], seen: int) -> Array:
        live = np.asarray(live)
        if self.rule == "knorm":
            return -np.linalg.norm(self.head.k[live], axis=1)
        if self.rule == "window":
            return live.astype(float)
        if self.rule == "h2o":
            return self.sums[live]
        if self.rule == "tova":
            return self.last[live]
        votes = np.zeros(len(self.head.k))
        for t in range(seen - self.window, seen):
            causal = [i for i in live if i <= t]
            votes[causal] += self.head.attend(t, causal)[0].sum(axis=0)
        return votes[live]


@dataclass
class Method:
    """How a method cuts. mode: oneshot (the prompt alone), recut (behind each input), stream (also at every
    `every`-th output since the last input)."""

    rule: str
    mode: str
    recent: int = 0
    window: int = 0
    every: int = 1

    def cuts(self, steps: int) -> bool:
        """steps: outputs since the last input."""
        return self.mode != "oneshot" and (steps == 0 or (self.mode == "stream" and steps % self.every == 0))

    def kept(self, scores: Scores, live: Sequence[int], seen: int, budget: int) -> list[int]:
        if len(live) <= budget:
            return list(live)
        safe = set(live[len(live) - self.recent :]) if self.recent else set()
        order = sorted(zip(-scores.of(live, seen), live, strict=True))
        best = [i for _, i in order if i not in safe][: budget - len(safe)]
        return sorted(safe | set(best))


@dataclass
class Segment:
    """A scored part: number, first token, tokens held when it begins; errors [rows, G], tokens attended."""

    number: int
    begin: int
    resident: int
    errors: list[Array] = field(default_factory=list)
    attended: list[int] = field(default_factory=list)


@dataclass
class Replayed:
    kept: list[list[int]]
    segments: list[Segment]


def replay(
    head: Head, method: Method, budget: int, prompt: int, turns: Sequence[tuple[int, int, str]]
) -> Replayed:
    """turns: (first token, end, kind) of what follows the prompt, kind "input" or "output"."""
    scores = Scores(method.rule, head, method.window)
    for t in range(prompt):
        scores.observe(range(t + 1), head.attend(t, list(range(t + 1)))[0])
    live = method.kept(scores, list(range(prompt)), prompt, budget)
    done = Replayed([live], [])
    steps = 0
    for number, (begin, end, kind) in enumerate(turns):
        if kind == "output":
            done.segments.append(Segment(number, begin, len(live)))
        for t in range(begin, end):
            live = [*live, t]
            p, z = head.attend(t, live)
            scores.observe(live, p)
            steps = steps + 1 if kind == "output" else 0
            if kind == "output":
                done.segments[-1].attended.append(len(live))
                exact = head.attend(t, list(range(t + 1)))[1]
                done.segments[-1].errors.append(
                    np.linalg.norm(z - exact, axis=1) / np.linalg.norm(exact, axis=1)
                )
            if (kind == "output" or t == end - 1) and method.cuts(steps):
                live = method.kept(scores, live, t + 1, budget)
            done.kept.append(live)
    return done


def branch(context: Head, rows: Head, tokens: int) -> Head:
    """The first `tokens` tokens of a text, followed by the rows of a branch."""
    join: Callable[[Array, Array], Array] = lambda a, b: np.concatenate([a[..., :tokens, :], b], axis=-2)  # noqa: E731
    return Head(join(context.q, rows.q), join(context.k, rows.k), join(context.v, rows.v))
