"""Adapters through which the engine runs methods in Python: one object per method, one per cache."""

import contextlib
import copy
import inspect
import json
import math
import re
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from kvbase.errors import ConfigError

from .identity import printable
from .shown import Prompt, Tokens, generator

if TYPE_CHECKING:
    from .layer_inputs import InputsOf

KINDS = {bool: "bool", int: "int", float: "float"}
KIND_OF = {name: kind for kind, name in KINDS.items()}
ENGINES = ("sinks", "recent")  # parameters that the engine enforces itself
# Options that an entry of `methods` has for every method; a parameter of that name could never be set.
TAKEN = (
    "gqa",
    *("name", "phase", "positions", "order", "prompt", "row_format", "reweight", "wrapper", "merge"),
    *("think", "protect_ends", "allocator", "uniforms", "budget", "rng"),
)
LARGEST = 1 << 30  # whole numbers must be below this


class Hosted:
    """A method in the form that the engine calls: `facts` describe it, `open(place)` makes an object for one
    cache."""

    facts: dict[str, Any]
    options: Mapping[str, Any] = {}  # parameters with which it is listed, beside those of its entry
    needs_hidden = False  # whether it reads the input of the model's attention modules

    def bound(self, inputs_of: "InputsOf") -> "Hosted":
        """This method for one replay. inputs_of(prompt, layer): what the model had of a layer."""
        return self

    def attached(self, model: Any, modules: Mapping[int, Any]) -> contextlib.AbstractContextManager[None]:
        """Entered while a model runs whose attention modules are {layer: module}."""
        return contextlib.nullcontext()

    @property
    def facts_json(self) -> str:
        """The facts as JSON, for the engine."""
        names = ("name", "kind", "default", "help")
        parameters = [dict(zip(names, parameter, strict=True)) for parameter in self.facts["parameters"]]
        return json.dumps({**self.facts, "parameters": parameters})

    def open(self, place: str) -> Any:
        """Object that decides one cache. place: JSON with the layer, heads, seed, budget and parameters."""
        return self.cache(json.loads(place))

    def cache(self, place: dict[str, Any]) -> Any:
        """`open` with the place as a dict."""
        raise NotImplementedError

    def same_as(self, other: "Hosted") -> bool:
        """Whether both are the same method."""
        return self is other

    def __repr__(self) -> str:
        return f"<method {self.facts['name']}>"


class Scorer(Hosted):
    """A one-shot method: a function that scores a prompt. It can still be called as that function."""

    def __init__(self, function: Callable[..., Any], facts: dict[str, Any], hidden: bool = False):
        self.function, self.facts, self.needs_hidden = function, facts, hidden
        self.inputs_of: InputsOf | None = None
        self.__name__, self.__doc__ = facts["name"], function.__doc__

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self.function(*args, **more)

    def bound(self, inputs_of: "InputsOf") -> "Scorer":
        if not self.needs_hidden:
            return self
        own = copy.copy(self)
        own.inputs_of = inputs_of
        return own

    def cache(self, place: dict[str, Any]) -> "ScoredCache":
        return ScoredCache(self, place)

    def same_as(self, other: Hosted) -> bool:
        return isinstance(other, Scorer) and self.function is other.function and self.facts == other.facts


def with_types(params: Mapping[str, Any], parameters: list[tuple]) -> dict[str, Any]:
    """Parameters from JSON, which has one type of number: 1.0 arrives as 1."""
    return {**params, **{name: KIND_OF[kind](params[name]) for name, kind, *_ in parameters}}


class _Cache:
    """One cache. In an audit, entries of evicted tokens become NaN in every array that the method received,
    so a method that still reads them is caught."""

    def __init__(self, place: dict[str, Any], parameters: list[tuple]):
        self.place = place
        self.params = with_types(place["params"], parameters)
        self._handed: list[tuple[Any, np.ndarray, int]] = []

    def hand_out(self, array: np.ndarray, tokens: np.ndarray, axis: int) -> np.ndarray:
        """Returns `array`, which goes to the method, and remembers it for audits. Its axis `axis` runs over
        `tokens`."""
        if self.place["audit"]:
            self._handed.append((weakref.ref(array), tokens.copy(), axis))
        return array

    def hide_evicted(self, held: np.ndarray) -> None:
        """Sets the entries of tokens that are not in `held` to NaN in all arrays handed out."""
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
        told = {name: method.facts[name] for name in ("sees_budget", "random")}
        super().__init__({**place, **told}, method.facts["parameters"])
        self.method = method
        self.own = {name: value for name, value in self.params.items() if name not in ENGINES}

    def score(self, view: Any) -> np.ndarray:
        prompt = Prompt(view, self.place, self.hand_out, self.method.inputs_of)
        return _scores(self.method.function(prompt, **self.own), view.size, self.method.facts["name"])


class StreamedCache(_Cache):
    def __init__(self, policy: Any, place: dict[str, Any], parameters: list[tuple]):
        super().__init__({**place, "random": policy.random}, parameters)
        self.policy = policy
        policy.budget = place["budget"]
        if policy.random:
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
        self._store_scores(tokens, view)

    def evict(self, view: Any) -> np.ndarray:
        tokens = self._tokens(view)
        leaving = self.policy.evict(tokens)
        self._store_scores(tokens, view)
        found = np.atleast_1d(np.asarray([] if leaving is None else leaving))
        if found.size and found.dtype.kind not in "iu":
            raise TypeError(
                f"evict() returned {type(leaving).__name__} of {found.dtype}: return some of its `tokens`, "
                "an array or a list of whole numbers"
            )
        if found.ndim > 1:
            raise ValueError(f"evict() returned an array {list(found.shape)}: return a list of tokens, [n]")
        if found.size and not -LARGEST < int(found.min()) <= int(found.max()) < LARGEST:
            raise ValueError(f"evict() returned {found.min()}..{found.max()}: these are no tokens")
        return np.ascontiguousarray(found, np.int32)

    def _tokens(self, view: Any) -> Tokens:
        if not self.started:  # the prompt is streamed token by token
            self.started = True
            self.policy.start(None, self.policy.budget)
        tokens = view.tokens().view(Tokens)
        tokens._view, tokens._hand_out = view, self.hand_out
        if self._handed:
            self.hide_evicted(np.asarray(tokens))
        return tokens

    @staticmethod
    def _store_scores(tokens: Tokens, view: Any) -> None:
        scores, tokens._view = tokens._scores, None
        if scores is None:
            return
        usable = np.isfinite(scores)
        if not usable.all():
            worst = tokens[np.argmin(usable)]
            raise ValueError(f"the score of token {worst} is not a finite number")
        view.set_scores(np.ascontiguousarray(scores, np.float64))


def _scores(given: Any, size: int, where: str) -> np.ndarray:
    if type(given).__module__.partition(".")[0] == "torch":
        given = given.detach().cpu()
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"{where} returned a masked array: say what masked scores are with .filled(value)")
    scores = np.asarray(given)
    if scores.dtype == object or scores.dtype.kind not in "fiub":
        raise TypeError(
            f"{where} returned {type(given).__name__} instead of scores, an array [{size}] of numbers"
        )
    if scores.shape not in ((size,), (1, size)):
        raise ValueError(f"{where} returned {list(scores.shape)} scores: return [{size}], one per token")
    return np.ascontiguousarray(scores.reshape(-1), np.float64)


def method_facts(
    name: str, told: Any, *, parameters: list[tuple], streams: bool, observes: bool
) -> dict[str, Any]:
    for fact in ("sinks", "recent", "window", "row_bytes"):
        value = getattr(told, fact)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
            raise ConfigError(f"{name}: {fact} is {value!r}: it must be a whole number, 0 or more")
    for fact in ("title", "source"):
        if not isinstance(getattr(told, fact), str):
            raise ConfigError(f"{name}: {fact} is {getattr(told, fact)!r}: it must be text")
    return {
        "name": name,
        "title": printable(told.title or "a method in Python"),
        "source": printable(told.source),
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


def parameters_of_function(
    function: Callable[..., Any], inputs: tuple[str, ...] = ("prompt",)
) -> list[tuple]:
    """Parameters of a function whose first arguments are `inputs`."""
    found = list(inspect.signature(function).parameters.values())
    name = getattr(function, "__name__", "score")
    if len(found) < len(inputs):
        raise ConfigError(f"{name}() takes no {inputs[len(found)]}: write {name}({', '.join(inputs)})")
    found = found[len(inputs) - 1 :]
    for p in found[1:]:
        if p.default is p.empty and p.name in ("k", "v", "hidden"):
            hidden = ", hidden=True" if "hidden" in (p.name, *(one.name for one in found)) else ""
            raise ConfigError(
                f"{name}: takes {p.name}: decorate it with @kvreplay.scorer(torch=True{hidden})"
            )
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            raise ConfigError(f"{name}: the parameter {p.name} needs a default: write {p.name}=1")
    return [_parameter(p.name, p.default, name) for p in found[1:] if p.default is not p.empty]


def parameters_of_class(kind: type, base: type, told: Any) -> list[tuple]:
    """Annotated int, float and bool attributes of a class that `base` does not have, with the defaults in
    `told`."""
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
    if name in (*TAKEN, *ENGINES):
        raise ConfigError(f"{where}: {name} is an option of every method: give the parameter another name")
    if not math.isfinite(value) or (kind == "int" and abs(value) >= LARGEST):
        raise ConfigError(
            f"{where}: the parameter {name} is {value} by default: it must be finite, a whole number also "
            f"below {LARGEST}"
        )
    return name, kind, float(value), "a parameter of the method"


def checked_name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise ConfigError(
            f"{name!r} cannot name a method: use small letters, digits and _, for example my_scores"
        )
    return name


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
