"""Methods that are written in Python, and run by the engine beside its own.

One shot, as a function that scores the prompt's tokens, of which the larger stay:

    @kvreplay.scorer(window=32)
    def votes(prompt, kernel=7):
        return prompt.attention(last=32).sum(axis=(0, 1))

Streaming, as a class that says who leaves when the cache is full:

    class Oldest(kvreplay.Policy):
        def evict(self, tokens):
            return tokens[: len(tokens) - self.budget]

Both are given to `replay(methods=[votes, Oldest, "h2o"])`. The engine keeps to itself what it keeps for its
own
methods: budgets, protected tokens, the account of bytes, audits, tables. Every kv head is decided on its own.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .arguments import guess, suggests_arguments
from .errors import ConfigError
from .hosting import (
    Hosted,
    Scorer,
    StreamedCache,
    checked_name,
    method_facts,
    parameters_of_class,
    parameters_of_function,
    snake_case,
)
from .identity import identity_of
from .shown import Prompt, Tokens


class Policy:
    """A streaming method: derive from it, and say who leaves. One copy of it decides one cache: a class is
    called for each, an instance is copied (copy.deepcopy).

    Class attributes: `name` (default: the class's, in snake case), `title`, `source`; `sinks` and `recent`,
    tokens that always stay; `window`, last rows of the prompt whose queries and attention start() may ask
    for; `row_bytes`, bytes that the policy remembers of a held token besides its score; `random`, whether it
    draws (it is then repeated over seeds). Other annotated attributes of type int, float or bool are its
    parameters, which `{"name": Mine, "decay": [0.9, 1.0]}` sweeps.

    A step costs two calls of Python: H2O written so takes some 25 microseconds more a step than the built-in
    one. docs/python.md shows how that was measured.
    """

    name: str = ""
    title: str = ""
    source: str = "Python"
    sinks: int = 0
    recent: int = 0
    window: int = 0
    row_bytes: int = 0
    random: bool = False
    budget: int
    rng: np.random.Generator

    def start(self, prompt: Prompt | None, budget: int) -> Any:
        """The prompt is there (None: it comes token by token, as steps). `self.budget` is set already.

        May return scores [P] that the tokens start with."""

    def observe(self, tokens: Tokens, p: np.ndarray) -> None:
        """After each step: the probabilities p [query heads, rows] with which it attended to `tokens`."""

    def evict(self, tokens: Tokens) -> Any:
        """Tokens that leave, of those that are held; asked when there are more than the budget allows. As
        many must leave as are too many; more may. A protected token, or one that has left, fails the cell."""
        raise NotImplementedError(f"{type(self).__name__}.evict(tokens) is missing")


class PolicyMethod(Hosted):
    """A class derived from Policy, or an instance whose attributes are the defaults."""

    def __init__(self, given: type[Policy] | Policy):
        self.given = given
        self.type = given if isinstance(given, type) else type(given)
        told = self.type if isinstance(given, type) else given
        name = checked_name(told.name or snake_case(self.type.__name__))
        self.facts = method_facts(
            name,
            told,
            parameters=parameters_of_class(self.type, Policy, told),
            streams=True,
            observes=self.type.observe is not Policy.observe,
        )
        self.facts["identity"] = identity_of(given, self.facts, Policy)
        if self.type.evict is Policy.evict:
            own = [word for word in vars(self.type) if not word.startswith("_") and word != "evict"]
            raise ConfigError(
                f"{name}: {self.type.__name__}.evict(tokens) is missing{_misspelt('evict', own)}: "
                "it says which of the held tokens leave"
            )
        if isinstance(given, type) and _needs_arguments(given):
            raise ConfigError(
                f"{name}: {given.__name__}() needs arguments: give {given.__name__}(...) instead"
            )

    def cache(self, place: dict[str, Any]) -> "StreamedCache":
        policy = copy.deepcopy(self.given) if isinstance(self.given, Policy) else self.given()
        return StreamedCache(policy, place, self.facts["parameters"])

    def same_as(self, other: Hosted) -> bool:
        return self.facts == other.facts and isinstance(other, PolicyMethod) and self.type is other.type


def _misspelt(hook: str, own: list[str]) -> str:
    near = guess(hook, own).removeprefix(" (did you mean ").removesuffix("?)")
    return f" ({near} is near: did you mean {hook}?)" if near else ""


def _needs_arguments(kind: type[Policy]) -> bool:
    parameters = inspect.signature(kind).parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


@suggests_arguments
def scorer(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    window: int = 0,
    window_stays: bool = True,
    sinks: int = 0,
    recent: int = 0,
    random: bool = False,
    uses_budget: bool = False,
    title: str = "",
    source: str = "Python",
) -> Any:
    """Makes a one-shot method of `score(prompt, **parameters) -> [P]` or [1, P], of which the larger scores
    stay.

    name: in tables and configurations; default: the function's.
    window: last rows of the prompt whose queries and attention the function asks for.
    window_stays: whether the tokens of the window always stay, as SnapKV's do.
    sinks, recent: first and last tokens that always stay.
    random: the function draws from prompt.rng, and is repeated over seeds.
    uses_budget: its scores are others at another budget; otherwise it is asked once for all budgets.

    Keyword arguments of the function with a default (int, float, bool) are parameters of the method. What it
    raises fails its cells, with the traceback, and no other.
    """
    if function is None:
        return lambda f: scorer(
            f, name=name, window=window, window_stays=window_stays, sinks=sinks, recent=recent, random=random,
            uses_budget=uses_budget, title=title, source=source,
        )  # fmt: skip
    if not callable(function):
        raise ConfigError(f"scorer: {function!r} is no function: write score(prompt) -> [P]")
    told = Policy()
    told.title, told.source, told.random = (
        title or (inspect.getdoc(function) or "").partition("\n")[0],
        source,
        random,
    )
    told.sinks, told.recent, told.window = sinks, recent, window
    facts = method_facts(
        checked_name(name or getattr(function, "__name__", type(function).__name__)),
        told,
        parameters=parameters_of_function(function),
        streams=False,
        observes=False,
    )
    facts |= {"window_stays": window_stays and window > 0, "sees_budget": uses_budget}
    return Scorer(function, {**facts, "identity": identity_of(function, facts, object)})


def hosted(given: Any) -> Hosted | None:
    """What the engine can host of an object: a scorer, a Policy; None where it is neither."""
    if isinstance(given, Hosted):
        return given
    if isinstance(given, Policy) or (isinstance(given, type) and issubclass(given, Policy)):
        return PolicyMethod(given)
    if inspect.isfunction(given):
        return scorer(given)
    return None
