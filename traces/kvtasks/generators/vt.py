"""Variable tracking: a chain of assignments carries a value, and all its variables are asked for (VT of
RULER, arXiv 2404.06654, section 3.2).

    Memorize and track the chain(s) of variable assignment hidden in the following text. ... VAR ABCDE =
    12345. ... VAR FGHIJ = VAR ABCDE. ... Find all variables that are assigned the value 12345 in the text
    above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..drafts import Needle, Quiz, planted
from ..haystacks import Haystack
from ..words import distinct

if TYPE_CHECKING:
    import random

    from ..drafts import Wishes

HOPS = 4  # assignments of a variable to the next one
LETTERS = 5
HAYSTACK = "sentences"


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """A chain of HOPS + 1 variables. The first assignment stands at the depth that the user wishes, and the
    others follow it in order."""
    value = str(draw.randrange(10**4, 10**5))
    names = distinct(_name, HOPS + 1, draw)
    first = wishes.first_depth(draw)
    depths = [first, *sorted(draw.uniform(first, 1) for _ in range(HOPS))]
    right = [value, *(f"VAR {name}" for name in names)]
    needles = [
        Needle(f"VAR {name} = {given}.", depth)
        for name, given, depth in zip(names, right[:-1], depths, strict=True)
    ]
    straw = Haystack(wishes.haystack or HAYSTACK, draw)
    return Quiz(
        "Memorize and track the chain(s) of variable assignment hidden in the following text.",
        lambda n: planted(straw.first(n), needles),
        f"Question: Find all variables that are assigned the value {value} in the text above.",
        "Answer: According to the chain(s) of variable assignment in the text above, "
        f"{len(names)} variables are assigned the value {value}, they are:",
        tuple(names),
        facts={"value": value, "hops": HOPS, "haystack": wishes.haystack or HAYSTACK},
    )


def _name(draw: random.Random) -> str:
    return "".join(draw.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=LETTERS))
