"""Common words: ten words of a numbered list appear more often than the others, and are asked for (CWE of
RULER, arXiv 2404.06654, section 3.3).

    Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones
    that appear most often. 1. oak 2. river ... Name the 10 most common words in the above list.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..drafts import Passage, Quiz
from ..words import single_words

if TYPE_CHECKING:
    from ..drafts import Wishes

COMMON = 10
# RULER repeats common words 30 times and others 3 times in 4,096 tokens. A shorter list repeats them less.
TIMES, TOKENS, LEAST, RATIO = 30, 4096, 3, 10
MOST = 20000  # other words


def draw_quiz(draw: random.Random, wishes: Wishes) -> Quiz:
    """A list with n uncommon words; the number of repetitions grows with the tokens up to RULER's."""
    times = max(LEAST, min(TIMES, round(TIMES * wishes.tokens / TOKENS)))
    others = max(1, times // RATIO)
    common = single_words(COMMON, draw)
    seed = draw.getrandbits(64)

    def passage(n: int) -> Passage:
        mixed = random.Random(f"{seed} {n}")
        rare = [
            word for word in single_words(min(n, MOST) + COMMON, random.Random(seed)) if word not in common
        ]
        words = common * times + rare[:n] * others
        mixed.shuffle(words)
        return Passage(" ".join(f"{number}. {word}" for number, word in enumerate(words, 1)))

    return Quiz(
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
        "ones that appear most often.",
        passage,
        f"Question: Which {COMMON} words are the most common ones in the above list?",
        f"Answer: The top {COMMON} words that appear most often in the list are:",
        tuple(common),
        facts={"times": times, "times_of_others": others},
    )
