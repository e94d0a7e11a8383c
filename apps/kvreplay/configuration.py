"""The arguments of kvreplay.replay as a configuration of the engine, which is that of `kvreplay run` without
traces."""

import copy
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np

from .errors import ConfigError
from .hosting import Hosted, checked_name, printable
from .own_methods import hosted

ENTRY_POINTS = "kvreplay.methods"  # by which installed packages offer methods
SAVES = ("curves", "kept", "outputs")


def methods_of(given: Any, built_in: Iterable[str]) -> tuple[list[Any], list[Hosted]]:
    """(entries of `methods:`, the methods of them that Python hosts)."""
    entries: list[Any] = []
    own: dict[str, Hosted] = {}
    known = set(built_in)
    for entry in _listed(given):
        named, options = (
            (entry["name"], dict(entry)) if isinstance(entry, Mapping) and "name" in entry else (entry, {})
        )
        if isinstance(named, str):
            method = None if named in known else installed_method(named)
        else:
            method = hosted(named)
            if method is None:
                raise ConfigError(
                    f"methods: {named!r} is no method: give a name, a dict with `name`, a scorer or a Policy"
                    + _not_derived(named)
                )
        if method is not None:
            name = method.facts["name"]
            if name in own and not own[name].same_as(method):
                raise ConfigError(f"methods: two methods are called {name}: give one of them another name")
            own.setdefault(name, method)
            named = name
        entries.append(named if not options else {**options, "name": named})
    if not entries:
        raise ConfigError("methods is empty: give names (kvreplay.methods()), dicts, scorers or policies")
    return [plain(entry, "methods") for entry in entries], list(own.values())


def _not_derived(named: Any) -> str:
    kind = named if isinstance(named, type) else type(named)
    return f". Derive it: class {kind.__name__}(kvreplay.Policy)" if hasattr(kind, "evict") else ""


def installed_method(name: str) -> Hosted | None:
    """What an installed package offers under this name; None where none does."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            method = hosted(_loaded(point))
            if method is None:
                raise ConfigError(
                    f"{point.value} is no method: {ENTRY_POINTS} must name a scorer or a Policy"
                )
            offered = copy.copy(method)  # the package's own keeps its name
            offered.facts = {**method.facts, "name": checked_name(name)}
            return offered
    return None


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(
            f"the method {point.name} of an installed package cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {error}"
        ) from error


def budget_of(given: Any) -> dict[str, Any] | None:
    """`budget:` of tokens (64) and shares of the full cache's bytes ("20%"), or a dict as the configuration
    has it. Raises ConfigError."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return plain(dict(given), "budgets")
    values = [_budget(value) for value in _listed(given)]
    shares = [value for value in values if isinstance(value, float)]
    tokens = [value for value in values if not isinstance(value, float)]
    kinds = {"tokens": tokens, "share_of_cache": shares}
    return {kind: own for kind, own in kinds.items() if own} or {"tokens": []}


def _budget(value: Any) -> int | float:
    """Tokens, or a share as a float."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", value, re.ASCII)
        if match is None and value.strip().isdecimal():
            raise ConfigError(f"budgets: {value!r} is text: remove the quotes")
        if match is None:
            raise ConfigError(f'budgets: {value!r} is neither a number of tokens nor a share such as "20%"')
        return float(match[1] + "e-2")
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ConfigError(f'budgets: {value!r} is neither a number of tokens nor a share such as "20%"')
    if isinstance(value, float | np.floating) and not float(value).is_integer():
        share = (
            f" A share of the cache's bytes? write \"{value * 100:g}%\". A share of the prompt's tokens? "
            f'write {{"fraction_kept": [{value:g}]}}'
        )
        raise ConfigError(f"budgets: {value:g} is no number of tokens.{share if 0 < value < 1 else ''}")
    return int(value)


def seeds_of(given: Any) -> Any:
    """`seeds:` of a number of seeds, (first, count), or a dict."""
    if isinstance(given, Mapping):
        return plain(dict(given), "seeds")
    if isinstance(given, tuple | list) and len(given) == 2:
        return {"first": plain(given[0], "seeds"), "count": plain(given[1], "seeds")}
    return {"count": plain(given, "seeds")}


def saves_of(given: Any) -> list[str]:
    """`output.save:` of a word or several."""
    words = [] if given is None else _listed(given)
    for word in words:
        if word not in SAVES:
            raise ConfigError(f"save: {word!r} is none of {', '.join(SAVES)}")
    return list(words)


def without_none(**values: Any) -> dict[str, Any]:
    """The arguments that were given."""
    return {name: value for name, value in values.items() if value is not None}


def plain(value: Any, where: str) -> Any:
    """A value as JSON has it; numbers of numpy are numbers."""
    if isinstance(value, Mapping):
        return {
            plain(str(name), where): plain(item, f"{where}.{name}" if where else str(name))
            for name, item in value.items()
        }
    if isinstance(value, list | tuple | range | np.ndarray | set):
        return [plain(item, where) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item(), where)
    if isinstance(value, float) and not np.isfinite(value):
        raise ConfigError(f"{in_words_of_python(where)}: {value} is no number that can be used")
    if isinstance(value, int) and abs(value) >= 2**1000:
        raise ConfigError(f"{in_words_of_python(where)}: a number of {value.bit_length()} bits is too large")
    if isinstance(value, str) and printable(value) != value:
        raise ConfigError(f"{in_words_of_python(where)}: {value!r} is no text that can be written")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"{in_words_of_python(where)}: {value!r} cannot stand in a configuration: give numbers, words, lists "
        "or dicts"
    )


# What the engine calls by the words of its command line and files, and how Python says it.
IN_PYTHON = {
    r"\b(?:replay|select|run|output)\.([a-z_]+)": r"\1",
    r"add budget: \{tokens: \[64, 128\]\}": "add budgets=[64, 128]",
    r"\b(?:budget\.(?:tokens|fraction_kept|bytes)|fraction_kept|share_of_cache)\b": "budgets",
    r"kvreplay list methods": "kvreplay.methods()",
    r"kvreplay list formats": "kvreplay.formats()",
    r"kvreplay list metrics": "kvreplay.columns()",
    r"kvreplay describe (\w+)": r'kvreplay.describe("\1")',
    r"\{name: (\w+), (\w+): (\w+)\}": r'{"name": "\1", "\2": "\3"}',
    r"the trace (?=records no rotary)": "the trace (of arrays: rope=...) ",
}


def in_words_of_python(message: str) -> str:
    """What the engine says of a configuration, in the words of `replay`'s arguments."""
    problems = re.split(r"(?:^|\n|\s)command line: (?:error|warning): ", message)
    text = "; ".join(problem.strip() for problem in problems if problem.strip())
    for said, meant in IN_PYTHON.items():
        text = re.sub(said, meant, text)
    return text


def listed(given: Any) -> Any:
    """An iterable as a list; words, numbers and None as they are."""
    return (
        given if given is None or isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    )


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return [given]
    if isinstance(given, np.ndarray) and given.ndim == 0:
        return [given.item()]
    return list(given)
