"""Finds how many units of a context fill a number of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbase.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .drafts import Passage


def most_units(
    passage: Callable[[int], Passage], tokens: Callable[[Passage], int], most: int, name: str
) -> Passage:
    """The longest passage(n) of at most `most` tokens, found by bisection. ConfigError if passage(1) has
    more, or if no passage is so long.

    A passage of n + 1 units may have slightly fewer tokens than one of n; then one of the two is found.
    """
    found = passage(1)
    if (least := tokens(found)) > most:
        raise ConfigError(f"--tokens {most}: the shortest prompt of {name} has {least}: give more")
    good, bad = 1, 2
    while tokens(longer := passage(bad)) <= most:
        if len(longer.text) <= len(found.text):
            raise ConfigError(
                f"--tokens {most}: the longest prompt of {name} has {tokens(found)}: give fewer"
            )
        found, good, bad = longer, bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        if tokens(longer := passage(middle)) <= most:
            found, good = longer, middle
        else:
            bad = middle
    return found
