"""Needles of RULER's retrieval tasks, each of which gives a special magic value to a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .drafts import Needle, Quiz, joined, planted
from .haystacks import Haystack
from .words import of_kind

if TYPE_CHECKING:
    import random

    from .drafts import Wishes

SINGULAR = {"words": "word", "numbers": "number", "uuids": "uuid"}


def quiz(
    draw: random.Random,
    wishes: Wishes,
    asked: int = 1,
    each: int = 1,
    others: int = 0,
    haystack: str = "essay",
) -> Quiz:
    """A quiz that asks for `asked` keys with `each` values; `others` more keys have one value each.

    haystack: where the user names none. The first needle stands at the depth that the user wishes, all
    others where they are drawn.
    """
    keys_are, values_are = wishes.keys or "words", wishes.values or "numbers"
    kind = SINGULAR[values_are]
    keys = of_kind(keys_are, asked + others, draw)
    values = of_kind(values_are, asked * each + others, draw)
    owners = [key for key in keys[:asked] for _ in range(each)] + keys[asked:]
    depths = [wishes.first_depth(draw), *(draw.random() for _ in values[1:])]
    rows = list(zip(owners, values, depths, strict=True))
    if asked == 1:  # all values of a key are listed in the order of the text
        rows[:each] = sorted(rows[:each], key=lambda row: row[2])
    needles = [
        Needle(f"One of the special magic {kind}s for {key} is: {value}.", depth, n < asked * each)
        for n, (key, value, depth) in enumerate(rows)
    ]
    straw = Haystack(wishes.haystack or haystack, draw)
    wanted, many = joined(keys[:asked]), asked * each > 1
    which = "Which are all the" if many else "Which is the"
    words = f"special magic {kind}{'s' if many else ''}"
    return Quiz(
        f"Some special magic {kind}s are hidden within the following text. Make sure to memorize them. I "
        f"will quiz you about the {kind}s afterwards.",
        lambda n: planted(straw.first(n), needles),
        f"{which} {words} for {wanted} mentioned in the provided text?",
        f"The {words} for {wanted} mentioned in the provided text {'are' if many else 'is'}:",
        tuple(value for _, value, _ in rows[: asked * each]),
        facts={
            "keys": keys[:asked], "keys_are": keys_are, "values_are": values_are,
            "haystack": wishes.haystack or haystack, "n_needles": len(needles),
        },
    )  # fmt: skip
