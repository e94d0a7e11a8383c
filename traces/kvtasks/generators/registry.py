"""The list of tasks: one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import cwe, fwe, niah_multikey, niah_multiquery, niah_multivalue, niah_paraphrased, niah_single, qa, vt

if TYPE_CHECKING:
    import random

    from ..drafts import Quiz, Wishes


@dataclass(frozen=True)
class Task:
    """A task: one line about it, and draw(random numbers, wishes), which makes a quiz."""

    summary: str
    draw: Callable[[random.Random, Wishes], Quiz]


TASKS = {
    "niah_single": Task("one needle, which is asked for", niah_single.draw_quiz),
    "niah_multikey": Task("needles with distinct keys, one is asked for", niah_multikey.draw_quiz),
    "niah_multivalue": Task("a key with several values, all are asked for", niah_multivalue.draw_quiz),
    "niah_multiquery": Task("several keys, the values of all are asked for", niah_multiquery.draw_quiz),
    "niah_paraphrased": Task("the question shares no word with the needle", niah_paraphrased.draw_quiz),
    "vt": Task("a chain of assignments, all variables with the value are asked for", vt.draw_quiz),
    "cwe": Task("the ten words that a list repeats most often", cwe.draw_quiz),
    "fwe": Task("the three most frequent words of a coded text", fwe.draw_quiz),
    "qa": Task("a question that one of many short documents answers", qa.draw_quiz),
}
