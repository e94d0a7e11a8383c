"""One key has several values in needles of their own, and all are asked for (MV-NIAH of RULER, arXiv
2404.06654, section 3.1).

    ... One of the special magic numbers for KEY is: VALUE1. ... One of the special magic numbers for KEY
    is: VALUE2. ... Which are all the special magic numbers for KEY mentioned in the provided text?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..magic import quiz

if TYPE_CHECKING:
    import random

    from ..drafts import Quiz, Wishes

VALUES = 4


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """One key with VALUES values."""
    return quiz(draw, wishes, each=VALUES)
