"""A quiz, which a generator returns: its context grows with a number of units (sentences, words, ...)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Wishes:
    """What the user asks of a task. `None`: as the task usually is.

    tokens: length of the prompt. depth: where the first needle stands, 0 to 1; None: drawn.
    """

    tokens: int
    keys: str | None = None
    values: str | None = None
    haystack: str | None = None
    depth: float | None = None

    def first_depth(self, draw: random.Random) -> float:
        """Depth of the first needle. It is drawn in any case, so that all other draws are equal."""
        drawn = draw.random()
        return drawn if self.depth is None else self.depth


@dataclass(frozen=True)
class Needle:
    """A text in the context. depth: its place, 0 to 1. needed: whether the question needs it."""

    text: str
    depth: float
    needed: bool = True


@dataclass(frozen=True)
class Passage:
    """A context. needles: [start, end) of each needed needle, in characters of `text`."""

    text: str
    needles: tuple[tuple[int, int], ...] = ()

    @property
    def depths(self) -> list[float]:
        """Where each needed needle begins, as a share of the text."""
        return [round(start / len(self.text), 4) for start, _ in self.needles]


@dataclass(frozen=True)
class Quiz:
    """A task of one prompt: instruction, context, question, the beginning of the answer, and the answers.

    passage(n): the context of n units, n >= 1, which holds all needles. prefix: text with which the answer
    begins. score: a kind of kvtasks.scores. facts: what else is stored beside the prompt.
    """

    instruction: str
    passage: Callable[[int], Passage]
    question: str
    prefix: str
    answers: tuple[str, ...]
    score: str = "all"
    facts: dict[str, Any] = field(default_factory=dict)


def planted(units: Sequence[str], needles: Sequence[Needle]) -> Passage:
    """The units (each with the space that follows it) with the needles between them.

    A needle stands at the boundary that is nearest to its depth; at one boundary they keep their order.
    """
    ends = [0, *accumulate(map(len, units))]
    placed = sorted((_nearest(ends, needle.depth * ends[-1]), n) for n, needle in enumerate(needles))
    parts: list[str] = []
    spans: dict[int, tuple[int, int]] = {}
    length = at = 0
    for boundary, number in placed:
        parts += units[at:boundary]
        length += ends[boundary] - ends[at]
        at = boundary
        text = needles[number].text
        if needles[number].needed:
            spans[number] = (length, length + len(text))
        parts.append(f"{text} ")
        length += len(text) + 1
    return Passage("".join([*parts, *units[at:]]).rstrip(), tuple(spans[n] for n in sorted(spans)))


def _nearest(ends: Sequence[int], place: float) -> int:
    """Index of the end that is nearest to a place in characters."""
    above = min(bisect_left(ends, place), len(ends) - 1)
    return above - 1 if above and place - ends[above - 1] < ends[above] - place else above


def joined(values: Sequence[str]) -> str:
    """Values as a sentence lists them: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)
