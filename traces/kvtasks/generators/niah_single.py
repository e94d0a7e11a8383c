"""One needle in a haystack: one key has a value, which is asked for (S-NIAH of RULER, arXiv 2404.06654,
section 3.1 and the templates of its appendix).

    Some special magic numbers are hidden within the following text. ... One of the special magic numbers
    for KEY is: VALUE. ... Which is the special magic number for KEY mentioned in the provided text?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..magic import quiz

if TYPE_CHECKING:
    import random

    from ..drafts import Quiz, Wishes


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """One key, one value."""
    return quiz(draw, wishes)
