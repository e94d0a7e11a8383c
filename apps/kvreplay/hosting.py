"""Methods in Python as the engine takes them: what is told of each, and what decides one cache of it."""

import hashlib
import inspect
import json
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .errors import ConfigError
from .shown import Prompt, Tokens, generator

KINDS = {bool: "bool", int: "int", float: "float"}
ENGINES = ("sinks", "recent")  # parameters that the engine enforces itself


class Hosted:
    """A method as the engine takes it: `facts` of it, and `open(place)` for each cache."""

    facts: dict[str, Any]

    @property
    def facts_json(self) -> str:
        """The facts as the engine reads them."""
        names = ("name", "kind", "default", "help")
        parameters = [dict(zip(names, parameter, strict=True)) for parameter in self.facts["parameters"]]
        return json.dumps({**self.facts, "parameters": parameters})

    def open(self, place: str) -> Any:
        """What decides the cache at a place of a run, which is JSON."""
        return self.cache(json.loads(place))

    def cache(self, place: dict[str, Any]) -> Any:
        """What decides one cache."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<method {self.facts['name']}>"


class Scorer(Hosted):
    """A function that scores a prompt; it may still be called as what it is."""

    def __init__(self, function: Callable[..., Any], facts: dict[str, Any]):
        self.function, self.facts = function, facts
        self.__name__, self.__doc__ = facts["name"], function.__doc__

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self.function(*args, **more)

    def cache(self, place: dict[str, Any]) -> "ScoredCache":
        return ScoredCache(self, place)


class _Cache:
    """One cache. In an audit the arrays that the method was handed lose what has been evicted: it becomes
    NaN."""

    def __init__(self, place: dict[str, Any]):
        self.place = place
        self.params = place["params"]
        self._handed: list[tuple[Any, np.ndarray, int]] = []

    def hand_out(self, array: np.ndarray, tokens: np.ndarray, axis: int) -> np.ndarray:
        """An array that goes to the method, of which `axis` counts `tokens`."""
        if self.place["audit"]:
            self._handed.append((weakref.ref(array), tokens.copy(), axis))
        return array

    def forget_evicted(self, held: np.ndarray) -> None:
        """What the method may no longer look at."""
        alive = []
        for reference, tokens, axis in self._handed:
            array = reference()
            if array is None:
                continue
            gone = ~np.isin(tokens, held)
            np.moveaxis(array, axis, 0)[gone] = np.nan
            alive.append((reference, tokens, axis))
        self._handed = alive


class ScoredCache(_Cache):
    def __init__(self, method: Scorer, place: dict[str, Any]):
        super().__init__({**place, "sees_budget": method.facts["sees_budget"]})
        self.method = method
        self.own = {name: value for name, value in self.params.items() if name not in ENGINES}

    def score(self, view: Any) -> np.ndarray:
        prompt = Prompt(view, self.place, self.hand_out)
        return _scores(self.method.function(prompt, **self.own), view.size, self.method.facts["name"])


class StreamedCache(_Cache):
    def __init__(self, policy: Any, place: dict[str, Any]):
        super().__init__(place)
        self.policy = policy
        policy.budget = place["budget"]
        policy.rng = generator(place)
        for name, value in self.params.items():
            setattr(policy, name, value)
        self.started = False
        arguments = len(inspect.signature(policy.observe).parameters)
        self.observes_tokens = arguments > 1

    def start(self, view: Any) -> np.ndarray | None:
        self.started = True
        given = self.policy.start(Prompt(view, self.place, self.hand_out), self.policy.budget)
        return None if given is None else _scores(given, view.size, "start()")

    def observe(self, view: Any, p: np.ndarray) -> None:
        tokens = self._tokens(view)
        if self.observes_tokens:
            self.policy.observe(tokens, p)
        else:
            self.policy.observe(p)  # type: ignore[call-arg, arg-type]
        self._put_back(tokens, view)

    def evict(self, view: Any) -> np.ndarray:
        tokens = self._tokens(view)
        leaving = self.policy.evict(tokens)
        self._put_back(tokens, view)
        found = np.atleast_1d(np.asarray([] if leaving is None else leaving))
        if found.size and found.dtype.kind not in "iu":
            raise TypeError(
                f"evict() returned {found.dtype} numbers: return some of the tokens that it was given"
            )
        return np.ascontiguousarray(found.reshape(-1), np.int32)

    def _tokens(self, view: Any) -> Tokens:
        if not self.started:  # the prompt comes token by token
            self.started = True
            self.policy.start(None, self.policy.budget)
        tokens = view.tokens().view(Tokens)
        tokens._view, tokens._hand_out = view, self.hand_out
        if self._handed:
            self.forget_evicted(np.asarray(tokens))
        return tokens

    @staticmethod
    def _put_back(tokens: Tokens, view: Any) -> None:
        if tokens._scores is not None:
            view.set_scores(np.ascontiguousarray(tokens._scores, np.float64))
        tokens._view = None


def _scores(given: Any, size: int, where: str) -> np.ndarray:
    if type(given).__module__.partition(".")[0] == "torch":
        given = given.detach().cpu()
    scores = np.asarray(given)
    if scores.dtype == object or scores.dtype.kind not in "fiub":
        raise TypeError(
            f"{where} returned {type(given).__name__} instead of scores, an array [{size}] of numbers"
        )
    if scores.shape not in ((size,), (1, size)):
        raise ValueError(f"{where} returned {list(scores.shape)} scores: there must be [{size}], one a token")
    return np.ascontiguousarray(scores.reshape(-1), np.float64)


def method_facts(
    name: str, told: Any, *, parameters: list[tuple], text: str, streams: bool, observes: bool
) -> dict[str, Any]:
    for fact in ("sinks", "recent", "window", "row_bytes"):
        value = getattr(told, fact)
        if not isinstance(value, int) or not 0 <= value < 2**30:
            raise ConfigError(f"{name}: {fact} is {value!r}: it must be a whole number, 0 or more")
    return {
        "name": name,
        "title": told.title or "a method in Python",
        "source": told.source,
        "identity": hashlib.sha256(text.encode()).hexdigest()[:16],
        "streams": streams,
        "observes": observes,
        "random": bool(told.random),
        "sees_budget": True,
        "window_stays": False,
        "sinks": told.sinks,
        "recent": told.recent,
        "window": told.window,
        "row_bytes": told.row_bytes,
        "parameters": parameters,
    }


def parameters_of_function(function: Callable[..., Any]) -> list[tuple]:
    found = list(inspect.signature(function).parameters.values())
    if not found:
        raise ConfigError(f"{function.__name__}() takes no prompt: write {function.__name__}(prompt)")
    return [_parameter(p.name, p.default, function.__name__) for p in found[1:] if p.default is not p.empty]


def parameters_of_class(kind: type, base: type, told: Any) -> list[tuple]:
    """Annotated attributes of a class that its base does not have."""
    known = set(vars(base)) | set(base.__annotations__)
    names = [
        n for base in reversed(kind.__mro__) for n in getattr(base, "__annotations__", {}) if n not in known
    ]
    named = dict.fromkeys(
        n for n in names if hasattr(told, n) and isinstance(getattr(told, n), bool | int | float)
    )
    return [_parameter(name, getattr(told, name), kind.__name__) for name in named]


def _parameter(name: str, value: Any, where: str) -> tuple[str, str, float, str]:
    kind = KINDS.get(type(value))
    if kind is None:
        raise ConfigError(
            f"{where}: the parameter {name} is {value!r} by default: it must be int, float or bool"
        )
    return name, kind, float(value), "a parameter of the method"


def checked_name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise ConfigError(
            f"{name!r} is no name of a method: small letters, digits and _, for example my_scores"
        )
    return name


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def text_of(thing: Any, own: Mapping[str, Any]) -> str:
    """What tells a method from another of the same name: its source, or its code where there is none."""
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        text = repr((code.co_code, code.co_consts)) if code is not None else repr(sorted(vars(thing)))
    return text + repr(sorted(own.items(), key=lambda item: item[0]))
