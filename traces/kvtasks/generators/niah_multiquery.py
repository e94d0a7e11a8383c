"""Several keys with a value each, all of which are asked for (MQ-NIAH of RULER, arXiv 2404.06654, section
3.1).

    ... One of the special magic numbers for KEY1 is: VALUE1. ... Which are all the special magic numbers for
    KEY1, KEY2, KEY3 and KEY4 mentioned in the provided text?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..magic import quiz

if TYPE_CHECKING:
    import random

    from ..drafts import Quiz, Wishes

QUERIES = 4


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """QUERIES keys that are asked for."""
    return quiz(draw, wishes, asked=QUERIES)
