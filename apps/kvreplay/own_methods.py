"""Methods written in Python, which the engine runs like its built-in ones.

One-shot: a function that scores the prompt's tokens; the tokens with the highest scores are kept.

    @kvreplay.scorer(window=32)
    def votes(prompt, kernel=7):
        return prompt.attention(last=32).sum(axis=(0, 1))

Streaming: a class that chooses which tokens are evicted when the cache is full.

    class Oldest(kvreplay.Policy):
        def evict(self, tokens):
            return tokens[: len(tokens) - self.budget]

Pass both to `replay(methods=[votes, Oldest, "h2o"])`. As for its built-in methods, the engine handles
budgets, protected tokens, byte counts, audits and tables. Each kv head is decided separately.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from kvbase.errors import ConfigError

from .arguments import guess, suggest_arguments
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
from .layer_methods import TorchScorer
from .shown import Prompt, Tokens


class Policy:
    """Base class of a streaming method: derive from it and write `evict`.

        class Decayed(kv.Policy):
            '''Evicts the tokens with the smallest decayed sum of attention.'''
            window = 32             # start() may ask for the last 32 rows of the prompt
            recent = 32             # the newest 32 tokens are never evicted
            decay: float = 0.9      # a parameter

            def start(self, prompt, budget):
                return None if prompt is None else prompt.attention().sum(axis=(0, 1))

            def observe(self, tokens, p):
                tokens.scores *= self.decay
                tokens.scores += p.sum(axis=0)

            def evict(self, tokens):
                surplus = len(tokens) - self.budget
                order = np.argsort(tokens.scores[: -self.recent])
                return tokens[order[:surplus]]

        kv.replay(q, k, v, prefill=768, methods=[Decayed, "h2o"], budgets=[64])

    One object decides one cache: a class is instantiated for each cache, an instance is copied
    (copy.deepcopy). Class attributes:
        name: in tables and configurations; default: the class's name in snake case. title, source: texts.
        sinks, recent: how many first and last tokens are protected.
        window: how many last rows of the prompt start() may ask for (queries and attention).
        row_bytes: bytes per held token that the policy stores besides its score; the engine charges them.
        random: True if it draws from `self.rng`; it is then repeated over seeds.
        Other annotated attributes of type int, float or bool are parameters, which
        `{"name": Decayed, "decay": [0.9, 1.0]}` sweeps.
    The engine sets `self.budget`: how many tokens the cache may hold.

    A step costs two calls into Python: H2O written this way takes about 25 microseconds per step more than
    the built-in one (measured in docs/python.md).
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
        """Called once, before any step.

        prompt: the complete Prompt, P tokens; None if the prompt is streamed token by token. budget: tokens
        that the cache may hold; also in `self.budget`.
        Returns the initial scores [P] of the prompt's tokens, or None for zeros.
        """

    def observe(self, tokens: Tokens, p: np.ndarray) -> None:
        """Called after each step with its attention probabilities.

        tokens: Tokens [rows], the tokens that the cache holds. p: [query heads, rows], the probability with
        which each query head attended to each of them.
        """

    def evict(self, tokens: Tokens) -> Any:
        """Called when the cache holds more tokens than its budget. Every policy needs it.

        tokens: Tokens [rows], the tokens that the cache holds.
        Returns the tokens to evict, integers [n]: at least len(tokens) - self.budget of them. The cell fails
        if one of them is protected or not held, or if the method raises.
        """
        raise NotImplementedError(f"{type(self).__name__}.evict(tokens) is missing")


class PolicyMethod(Hosted):
    """A class derived from Policy, or an instance of one; an instance's attributes are the parameters'
    defaults."""

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
                "it returns the tokens to evict"
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


@suggest_arguments
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
    hidden: bool = False,
    torch: bool = False,
    title: str = "",
    source: str = "Python",
) -> Any:
    """Decorator that makes a one-shot method of a function `score(prompt, **parameters)`.

        @kv.scorer(window=32)
        def votes(prompt, power=1.0):
            return (prompt.attention(last=32) ** power).sum(axis=(0, 1))

        kv.replay(q, k, v, prefill=768, methods=[votes, "snapkv"], budgets=[64])

    The function receives a Prompt of P tokens and returns finite scores [P] or [1, P]. The tokens
    with the highest scores are kept, as many as the budget allows. Keyword arguments with a default (int,
    float, bool) are parameters of the method; `{"name": votes, "power": [0.5, 1.0]}` sweeps them.

    name: in tables and configurations; default: the function's name.
    window: how many last rows of the prompt the function may ask for (queries and attention).
    window_stays: whether the tokens of the window are protected, as SnapKV protects them.
    sinks, recent: how many first and last tokens are protected.
    random: the function draws from prompt.rng; it is repeated over seeds.
    uses_budget: the scores depend on prompt.budget; otherwise the function is called once for all budgets.
    hidden: the function reads prompt.hidden, the hidden states that attention receives (in `kvreplay.live`).
    torch: the function is score(q, k, v, **parameters) on tensors of torch, for all heads of a layer at once.
        It receives copies of the prompt's queries [Hq, P, D], keys [Hkv, P, D] and values [Hkv, P, Dv] on
        the device where they lie, and returns scores [Hkv, P]. With hidden=True it is score(q, k, v, hidden),
        hidden [P, hidden].
    title, source: texts for tables; the title's default is the first line of the function's docstring.

    Returns a method for `replay(methods=[...])`, which can still be called as a function. If the function
    raises, only its own cells fail; run.failed shows the traceback. Raises ConfigError if a name or a
    parameter is not allowed.
    """
    if function is None:
        return lambda f: scorer(
            f, name=name, window=window, window_stays=window_stays, sinks=sinks, recent=recent, random=random,
            uses_budget=uses_budget, hidden=hidden, torch=torch, title=title, source=source,
        )  # fmt: skip
    if not callable(function):
        raise ConfigError(f"scorer: {function!r} is no function: write score(prompt) -> [P]")
    inputs = ("prompt",) if not torch else ("q", "k", "v", "hidden") if hidden else ("q", "k", "v")
    if torch and (window or random or uses_budget):
        raise ConfigError(
            "scorer: torch=True has no window, random or uses_budget: it scores whole layers once"
        )
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
        parameters=parameters_of_function(function, inputs),
        streams=False,
        observes=False,
    )
    facts |= {"window_stays": window_stays and window > 0, "sees_budget": uses_budget}
    facts["identity"] = identity_of(function, facts, object)
    return TorchScorer(function, facts, hidden) if torch else Scorer(function, facts, hidden)


def hosted(given: Any) -> Hosted | None:
    """The Hosted method of a scorer, a function or a Policy; None for any other object."""
    if isinstance(given, Hosted):
        return given
    if isinstance(given, Policy) or (isinstance(given, type) and issubclass(given, Policy)):
        return PolicyMethod(given)
    if inspect.isfunction(given):
        return scorer(given)
    if any(kind.__module__.startswith("kvpress") for kind in type(given).__mro__):
        from .presses import press_method

        return press_method(given)
    return None
