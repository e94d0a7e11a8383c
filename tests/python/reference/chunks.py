"""Prompts that arrive in chunks, and another method for the decode, in numpy (docs/serving.md)."""

from collections.abc import Sequence

import numpy as np

from reference.turns import Array, Head, Method, Scores


class Weighted(Scores):
    """h2o with `weight: vnorm`: a call of R rows adds R m ||v|| / sum of m ||v||, m the sums of its rows."""

    def __init__(self, head: Head) -> None:
        super().__init__("h2o", head)
        self.call = np.zeros(len(head.k))

    def observe(self, live: Sequence[int], p: Array) -> None:
        self.call[live] += p.sum(axis=0)

    def close(self, live: Sequence[int], rows: int) -> None:
        given = self.call[live] * np.linalg.norm(self.head.v[live], axis=1)
        self.sums[live] += rows * given / given.sum()
        self.call[:] = 0


def scores_of(method: Method, head: Head) -> Scores:
    return Weighted(head) if method.rule == "vnorm" else Scores(method.rule, head, method.window)


def replay(
    head: Head, methods: Sequence[Method], budgets: Sequence[int], prompt: int, chunk: int
) -> list[list[int]]:
    """Tokens held after the prompt and after each step. methods: the one that cuts the prompt, and the one
    that decides later and follows the prompt too. One method does both."""
    followed = [scores_of(m, head) for m in methods]
    first, later = methods[0], methods[-1]
    live, lists = [], []

    def close(rows: int) -> None:
        for scores in followed:
            if isinstance(scores, Weighted):
                scores.close(live, rows)

    for t in range(len(head.k)):
        live = [*live, t]
        p = head.attend(t, live)[0]
        for scores in followed:
            scores.observe(live, p)
        if t >= prompt:
            close(1)
            if (t + 1 - prompt) % later.every == 0:
                live = later.kept(followed[-1], live, t + 1, budgets[-1])
        elif (t + 1) % chunk == 0 or t + 1 == prompt:
            close((t % chunk) + 1)
            live = first.kept(followed[0], live, t + 1, budgets[0])
        if t + 1 >= prompt:
            lists.append(live)
    return lists
