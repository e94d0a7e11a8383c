"""A person's sentence that shares no content word with the question: it is found by knowledge of the world
(after NoLiMa, arXiv 2502.05167, section 3). The pairs are in kvtasks/pairs.py.

    ... Yuki lives right beside the Semper Opera. ... Which person has been to Dresden?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..drafts import Needle, Quiz, planted
from ..haystacks import Haystack
from ..pairs import NAMES, PAIRS

if TYPE_CHECKING:
    import random

    from ..drafts import Wishes

OTHERS = 3  # people with a sentence of another pair
HAYSTACK = "essay"


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """One person who is asked for, and OTHERS with a sentence that does not answer the question."""
    number = draw.randrange(len(PAIRS))
    asked = PAIRS[number]
    others = draw.sample([pair for pair in PAIRS if pair.group != asked.group], OTHERS)
    names = draw.sample(NAMES, OTHERS + 1)
    depths = [wishes.first_depth(draw), *(draw.random() for _ in others)]
    needles = [
        Needle(pair.said.format(name), depth, pair is asked)
        for pair, name, depth in zip([asked, *others], names, depths, strict=True)
    ]
    straw = Haystack(wishes.haystack or HAYSTACK, draw)
    return Quiz(
        "Some sentences about people are hidden within the following text. Make sure to memorize them. I "
        "will quiz you about these people afterwards.",
        lambda n: planted(straw.first(n), needles),
        f"Question: According to the text above, which person {asked.asked}? Give the name only.",
        f"Answer: The person who {asked.asked} is",
        (names[0],),
        "any",
        {"pair": number, "haystack": wishes.haystack or HAYSTACK},
    )
