"""Suggests the nearest keyword argument when a function is called with an unknown one."""

import functools
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

Taken = ParamSpec("Taken")
Given = TypeVar("Given")


def guess(word: str, known: Iterable[str]) -> str:
    """A hint such as " (did you mean budgets?)", or "" if no known word is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def suggest_arguments(function: Callable[Taken, Given]) -> Callable[Taken, Given]:
    """Decorator: TypeError for an unknown keyword names the nearest one that the function has."""
    known = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: Taken.args, **more: Taken.kwargs) -> Given:
        for name in more:
            if name not in known:
                raise TypeError(
                    f"{function.__name__}() has no argument {name!r}{guess(name, known)}: "
                    f"help(kvreplay.{function.__name__}) says what it takes"
                )
        return function(*args, **more)

    return checked
