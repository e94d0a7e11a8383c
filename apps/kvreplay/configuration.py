"""Turns the arguments of kvreplay.replay into the engine's configuration: that of `kvreplay run`, without
traces."""

import copy
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
from kvbase.errors import ConfigError

from .hosting import Hosted, checked_name, printable
from .own_methods import hosted

ENTRY_POINTS = "kvreplay.methods"  # group of entry points in which installed packages offer methods
SAVES = ("curves", "kept", "outputs", "projections")


def replay_config(
    entries: list[Any],
    budgets: Any,
    *,
    select: Mapping[str, Any] | None = None,
    prefill: Any,
    tokens: Any,
    kv_heads: Any,
    queries: Any,
    prompt: Any,
    turns: Any = False,
    branches: Any = None,
    needles: Any,
    recall_k: Any = None,
    tier: Any = None,
    machine: Any = None,
    seeds: Any,
    metrics: Any,
    save: Any,
    device: Any,
    jobs: Any,
    precision: Any,
    audit: Any,
) -> dict[str, Any]:
    """The configuration of a replay from the arguments of kvreplay.replay; entries: of methods_of()."""
    config = {
        "schema": 1,
        "name": "replay",
        "select": without_none(**(select or {}), kv_heads=listed(kv_heads)),
        "replay": without_none(
            prefill=_prefill(prefill),
            tokens=tokens,
            queries=queries,
            prompt=prompt,
            needles=needles,
            recall_k=listed(recall_k),
            tier=tier,
            machine=machine,
            turns=turns or None,
            branches=branches if isinstance(branches, str) else listed(branches),
        ),
        "methods": entries,
        "seeds": seeds_of(seeds),
        "run": without_none(
            device=device, jobs=jobs, precision=precision, audit=None if audit is False else audit
        ),
        "output": {"save": saves_of(save)},
        **without_none(metrics=metrics),
    }
    if budgets is not None:
        config["budget"] = budget_of(budgets)
    return config


def methods_of(given: Any, built_in: Iterable[str]) -> tuple[list[Any], list[Hosted]]:
    """(entries of the configuration's `methods:`, those of the methods that are written in Python).

    given: a method or several; built_in: names of the engine's methods. Raises ConfigError.
    """
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
                    + _derive_hint(named)
                )
        if method is not None:
            name = method.facts["name"]
            if name in own and not own[name].same_as(method):
                raise ConfigError(f"methods: two methods are called {name}: give one of them another name")
            own.setdefault(name, method)
            named, options = name, {**method.options, **options}
        entries.append(named if not options else {**options, "name": named})
    if not entries:
        raise ConfigError("methods is empty: give names (kvreplay.methods()), dicts, scorers or policies")
    return [plain(entry, "methods") for entry in entries], list(own.values())


def _derive_hint(named: Any) -> str:
    kind = named if isinstance(named, type) else type(named)
    return f". Derive it: class {kind.__name__}(kvreplay.Policy)" if hasattr(kind, "evict") else ""


def installed_method(name: str) -> Hosted | None:
    """The method that an installed package offers under this name, or None. Raises ConfigError if it cannot
    be loaded."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            method = hosted(_loaded(point))
            if method is None:
                raise ConfigError(
                    f"{point.value} is not a method: {ENTRY_POINTS} must name a scorer or a Policy"
                )
            offered = copy.copy(method)  # the package's object keeps its name
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
    """The configuration's `budget:` from tokens (64) and shares of the full cache's bytes ("20%"), or from a
    dict that already has its form. Raises ConfigError."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return plain(dict(given), "budgets")
    values = [_budget(value) for value in _listed(given)]
    shares = [value for value in values if isinstance(value, float)]
    tokens = [value for value in values if not isinstance(value, float)]
    kinds = {"tokens": tokens, "share_of_cache": shares}
    return {kind: plain(own, "budgets") for kind, own in kinds.items() if own} or {"tokens": []}


def _prefill(value: Any) -> Any:
    """A share such as "75%" as a number; anything else unchanged."""
    share = isinstance(value, str) and re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", value, re.ASCII)
    return float(share[1] + "e-2") if share else value


def _budget(value: Any) -> int | float:
    """Tokens as an int, or a share as a float."""
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
    """The configuration's `seeds:` from a count, from (first, count), or from a dict."""
    if isinstance(given, Mapping):
        return plain(dict(given), "seeds")
    if isinstance(given, tuple | list) and len(given) == 2:
        return {"first": plain(given[0], "seeds"), "count": plain(given[1], "seeds")}
    return {"count": plain(given, "seeds")}


def saves_of(given: Any) -> list[str]:
    """The configuration's `output.save:` from one word or several. Raises ConfigError."""
    words = [] if given is None else _listed(given)
    for word in words:
        if word not in SAVES:
            raise ConfigError(f"save: {word!r} is unknown: known are {', '.join(SAVES)}")
    return list(words)


def without_none(**values: Any) -> dict[str, Any]:
    """The arguments that are not None, as JSON types."""
    return {name: plain(value, name) for name, value in values.items() if value is not None}


def plain(value: Any, where: str) -> Any:
    """A value as JSON types; numpy's numbers and arrays become numbers and lists. `where` names its argument
    in ConfigError."""
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
        raise ConfigError(f"{where}: {value} is not a finite number")
    if isinstance(value, int) and abs(value) >= 2**1000:
        raise ConfigError(f"{where}: a number of {value.bit_length()} bits is too large")
    if isinstance(value, str) and printable(value) != value:
        raise ConfigError(f"{where}: {value!r} cannot be encoded as UTF-8")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"{where}: {value!r} is not allowed in a configuration: give numbers, words, lists or dicts"
    )


def listed(given: Any) -> Any:
    """An iterable as a list; words, numbers and None unchanged."""
    return (
        given if given is None or isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    )


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return [given]
    if isinstance(given, np.ndarray) and given.ndim == 0:
        return [given.item()]
    return list(given)
