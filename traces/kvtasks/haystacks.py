"""Texts in which needles are hidden: essays, repeated sentences, random words.

RULER (arXiv 2404.06654, section 3) hides needles in essays and in repeated sentences.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from itertools import cycle, islice
from typing import TYPE_CHECKING

from .words import ADJECTIVES, NOUNS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

REPEATED = (
    "The grass is green. ", "The sky is blue. ", "The sun is yellow. ", "Here we go. ",
    "There and back again.\n",
)  # fmt: skip


class Haystack:
    """Sentences, each with the space that follows it. The first n are the same however many are asked for."""

    def __init__(self, kind: str, draw: random.Random):
        self._sentences = KINDS[kind](draw)
        self._known: list[str] = []

    def first(self, n: int) -> list[str]:
        """The first n sentences."""
        self._known += islice(self._sentences, max(n - len(self._known), 0))
        return self._known[:n]


def _essay(draw: random.Random) -> Iterator[str]:
    """Sentences of the essays from a drawn paragraph on, over and over."""
    paragraphs = _paragraphs()
    begin = draw.randrange(len(paragraphs))
    for paragraph in cycle(paragraphs[begin:] + paragraphs[:begin]):
        yield from paragraph


def _repeated(_: random.Random) -> Iterator[str]:
    return cycle(REPEATED)


def _words(draw: random.Random) -> Iterator[str]:
    """Sentences of 8 to 12 drawn words."""
    while True:
        words = draw.choices(NOUNS + ADJECTIVES, k=draw.randint(8, 12))
        yield " ".join(words).capitalize() + ". "


KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "essay": _essay, "sentences": _repeated, "words": _words,
}  # fmt: skip


@cache
def _paragraphs() -> list[list[str]]:
    """Sentences of each paragraph of the essays; a paragraph's last one ends it."""
    text = resources.files(__package__).joinpath("essays.txt").read_text(encoding="utf-8")
    found = []
    for paragraph in text.strip().split("\n\n"):
        sentences = re.split(r"(?<=[.!?]) +", " ".join(paragraph.split()))
        found.append([*(f"{sentence} " for sentence in sentences[:-1]), f"{sentences[-1]}\n\n"])
    return found
