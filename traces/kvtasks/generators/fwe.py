"""Frequent words: coded words follow a zeta distribution, and the three most frequent ones are asked for (FWE
of RULER, arXiv 2404.06654, section 3.3).

    Read the following coded text and track the frequency of each coded word. Find the three most frequently
    appeared coded words. ... kqzwmv ... xnrtpd ... Which three words appear most frequently in the above
    coded text?
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..drafts import Passage, Quiz
from ..words import distinct

if TYPE_CHECKING:
    from ..drafts import Wishes

ASKED = 3
EXPONENT = 2.0  # exponent of the zeta distribution
WORDS = 2000  # coded words; the rarest ones of a short text do not appear
LETTERS = 6
UNIT = 10  # words by which a text grows
NOISE = "..."  # the most frequent word


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """A text of about n times UNIT coded words, in which rank r appears in proportion to r^-EXPONENT."""
    coded = [NOISE, *distinct(_coded, WORDS, draw)]
    total = sum(rank**-EXPONENT for rank in range(1, len(coded) + 1))
    shares = [rank**-EXPONENT / total for rank in range(1, len(coded) + 1)]
    seed = draw.getrandbits(64)

    def passage(n: int) -> Passage:
        times = [round(UNIT * n * share) for share in shares]
        # Ranks that are asked for differ from the next ones also in a short text.
        times[1 : ASKED + 1] = [times[rank] + ASKED + 1 - rank for rank in range(1, ASKED + 1)]
        words = [word for word, count in zip(coded, times, strict=True) for _ in range(count)]
        random.Random(f"{seed} {n}").shuffle(words)
        return Passage(" ".join(words))

    return Quiz(
        "Read the following coded text and track the frequency of each coded word. Find the three most "
        "frequently appeared coded words.",
        passage,
        "Question: Do not provide any explanation. Please ignore the dots '...'. Which three words appear "
        "most frequently in the above coded text?",
        "Answer: According to the coded text above, the three most frequently appeared words are:",
        tuple(coded[1 : ASKED + 1]),
        facts={"exponent": EXPONENT},
    )


def _coded(draw: random.Random) -> str:
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=LETTERS))
