"""Needles with distinct keys, one of which is asked for (MK-NIAH of RULER, arXiv 2404.06654, section 3.1).

... One of the special magic numbers for KEY1 is: VALUE1. ... One of the special magic numbers for KEY2
is: VALUE2. ... Which is the special magic number for KEY1 mentioned in the provided text?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..magic import quiz

if TYPE_CHECKING:
    import random

    from ..drafts import Quiz, Wishes

OTHERS = 3  # keys besides the one that is asked for


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """One key that is asked for, and OTHERS that are not."""
    return quiz(draw, wishes, others=OTHERS)
