"""Question answering: one of many short documents answers the question (QA of RULER, arXiv 2404.06654,
section 3.4, which takes documents of SQuAD and HotpotQA; these are of invented people).

    Answer the question based on the given documents. Only give me the answer and do not output any other
    words. ... Document 3: Marta Olsen Marta Olsen was born in 1931 in Tolvik. ... Question: In which town was
    Marta Olsen born?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..drafts import Passage, Quiz
from ..people import Person, person

if TYPE_CHECKING:
    import random

    from ..drafts import Wishes

INSTRUCTION = "Answer the question based on the given documents. Only give me the answer and do not output any other words."  # noqa: E501
PLAIN_NAMES = 1000  # people, beyond whom others have a middle name


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """The person that is asked about, among n others with other names."""
    asked = person(draw)
    fact = draw.choice(list(asked.facts))
    depth = wishes.first_depth(draw)
    others: dict[str, Person] = {}

    def passage(n: int) -> Passage:
        while len(others) < n:
            other = person(draw, len(others) >= PLAIN_NAMES)
            if other.name != asked.name:
                others.setdefault(other.name, other)
        people = list(others.values())[:n]
        at = round(depth * n)
        return _documents([*people[:at], asked, *people[at:]], at, fact)

    return Quiz(
        f"{INSTRUCTION}\n\nThe following are given documents.",
        passage,
        f"{INSTRUCTION}\n\nQuestion: {asked.question(fact)}",
        "Answer:",
        (asked.facts[fact],),
        "any",
        {"fact": fact},
    )


def _documents(people: list[Person], at: int, fact: str) -> Passage:
    """The documents in order; the needle is the sentence of the person at `at` that holds the fact."""
    texts = [f"Document {number}: {one.name}\n{one.text}" for number, one in enumerate(people, 1)]
    before = "".join(f"{text}\n\n" for text in texts[:at])
    sentence = people[at].sentence(fact)
    start = len(before) + texts[at].index(sentence)
    return Passage("\n\n".join(texts), ((start, start + len(sentence)),))
