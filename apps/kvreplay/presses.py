"""Presses of kvpress (github.com/NVIDIA/kvpress) as methods: a press scores, and the engine's budgets cut.

    kv.live(model, methods=[SnapKVPress(window_size=32), "snapkv"], budgets=["20%"])

A press keeps the tokens that it would keep itself at the same ratio: those with the largest scores, by
torch's topk.
"""

import contextlib
import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvbase.errors import ConfigError

from .hosting import KINDS, Hosted, checked_name, method_facts
from .identity import identity_of
from .layer_inputs import LayerInputs
from .layer_methods import LayerScorer
from .own_methods import Policy

if TYPE_CHECKING:
    import torch

RATIO = "compression_ratio"  # which budgets replace
GATED = "_score_fast"  # how a press of gates (Fast KVzip) scores


def press_method(given: Any) -> "PressMethod | None":
    """The method of a press, or None for any other object. Raises ConfigError for a press that does not
    score."""
    kinds = press_kinds(given)
    if not kinds:
        return None
    if "ScorerPress" not in kinds and not hasattr(given, GATED):
        raise ConfigError(
            f"{type(given).__name__} does not score tokens by itself (it is no ScorerPress): give the press "
            "inside it, with our allocators and wrappers in place of its own"
        )
    if getattr(given, "seed", 0) is None:
        raise ConfigError(f"{type(given).__name__} draws other numbers each time: give it a seed")
    return PressMethod(given)


class PressMethod(LayerScorer):
    """A press. Its numbers are the method's parameters."""

    needs_hidden = True

    def __init__(self, press: Any):
        self.press = press
        kind = type(press)
        words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", kind.__name__.removesuffix("Press"))
        numbers = _numbers(press)
        told = Policy()
        told.title, told.source = f"{kind.__name__} of kvpress", "kvpress"
        facts = method_facts(
            checked_name(f"{words.lower()}_press"),
            told,
            parameters=[
                (n, KINDS[type(v)], float(v), f"{kind.__name__}.{n}") for n, v in _defaults(numbers, kind)
            ],
            streams=False,
            observes=False,
        )
        super().__init__({**facts, "identity": identity_of(kind, facts, object)})
        own = dict(_defaults(numbers, kind))
        self.options = {name: value for name, value in numbers.items() if value != own[name]}

    def same_as(self, other: Hosted) -> bool:
        return (
            isinstance(other, PressMethod)
            and type(other.press) is type(self.press)
            and _others(other.press) == _others(self.press)
        )

    @contextlib.contextmanager
    def attached(self, model: Any, modules: Mapping[int, Any]) -> Iterator[None]:
        """While entered, the press has what it takes from a model, and attention modules what presses
        expect."""
        try:
            self.press.post_init_from_model(model)
        except Exception as error:
            raise ConfigError(
                f"{type(self.press).__name__} cannot be used with this model: {error}"
            ) from error
        inner = getattr(model, "model", None)
        rotary = getattr(getattr(inner, "language_model", inner), "rotary_emb", None)
        added = [
            module for module in modules.values() if rotary is not None and not hasattr(module, "rotary_emb")
        ]
        for module in added:
            module.rotary_emb = rotary
        try:
            yield
        finally:
            for module in added:
                del module.rotary_emb

    def scores(self, inputs: LayerInputs, budget: int, params: Mapping[str, Any]) -> "torch.Tensor":
        """1 for the tokens that the press keeps, 0 for the others: [Hkv, P]."""
        import torch

        size = inputs.k.shape[1]
        press = _copy_of(self.press)
        for name, value in params.items():
            setattr(press, name, value)
        if hasattr(press, RATIO):
            setattr(press, RATIO, 1 - min(budget, size) / size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(getattr(inputs.module, "layer_idx", 0))
            scores = _score(press, inputs)[0]
        kept = scores.topk(min(budget, size), dim=-1).indices
        return torch.zeros(scores.shape, dtype=torch.float32, device=scores.device).scatter_(-1, kept, 1.0)


def _score(press: Any, inputs: LayerInputs) -> "torch.Tensor":
    """The scores [1, Hkv, P] of a press."""
    module = inputs.module or _module_of(inputs)
    hidden = None if inputs.hidden is None else inputs.hidden[None]
    if hasattr(press, GATED):
        press.score_val = {}
        press._score_fast(module, hidden)
        return press.score_val[module.layer_idx]
    keys, values = inputs.k[None], inputs.v[None]
    more = {"hidden_states": hidden, "position_embeddings": inputs.position_embeddings}
    try:
        return press.score(module, hidden, keys, values, None, more)
    except (AssertionError, AttributeError, TypeError) as error:
        if hidden is None:
            raise ValueError(f"{type(press).__name__} needs the model: run it by kvreplay.live") from None
        if not isinstance(error, AssertionError) and "None" not in str(error):
            raise  # probabilities, which take P * P numbers a head, would not help
    return press.score(module, hidden, keys, values, _attention(inputs), more)


def _copy_of(press: Any) -> Any:
    """A copy whose numbers can be changed, with copies of the presses inside it."""
    own = copy.copy(press)
    for name, value in vars(press).items():
        if press_kinds(value):
            object.__setattr__(own, name, _copy_of(value))
    return own


def press_kinds(given: Any) -> set[str]:
    """Names of kvpress's classes from which an object is derived; empty if it is no press."""
    kinds = {kind.__name__ for kind in type(given).__mro__ if kind.__module__.startswith("kvpress")}
    return kinds if "BasePress" in kinds else set()


def _module_of(inputs: LayerInputs) -> Any:
    """What presses read of an attention module, where no model runs."""
    heads, kv_heads, dim = inputs.q.shape[0], inputs.k.shape[0], inputs.k.shape[2]
    config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv_heads)
    return SimpleNamespace(config=config, head_dim=dim, num_key_value_groups=heads // kv_heads, layer_idx=0)


def _attention(inputs: LayerInputs) -> "torch.Tensor":
    """The probabilities [1, Hq, P, P] that eager attention would return."""
    import torch

    keys = inputs.k.repeat_interleave(inputs.q.shape[0] // inputs.k.shape[0], 0)
    logits = inputs.q @ keys.mT * getattr(inputs.module, "scaling", inputs.q.shape[-1] ** -0.5)
    future = torch.ones(logits.shape[1:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(future, float("-inf")).softmax(-1, dtype=torch.float32).to(inputs.q.dtype)[None]


def _numbers(press: Any) -> dict[str, Any]:
    """The numbers that a press was made with, without its ratio."""
    if not dataclasses.is_dataclass(press):
        return {}
    named = ((field.name, getattr(press, field.name)) for field in dataclasses.fields(press))
    return {name: value for name, value in named if type(value) in KINDS and name != RATIO and name[0] != "_"}


def _others(press: Any) -> list[str]:
    """What else a press was made with."""
    numbers = {*_numbers(press), RATIO}
    return sorted(f"{name}={value!r}" for name, value in vars(press).items() if name not in numbers)


def _defaults(numbers: Mapping[str, Any], kind: type) -> list[tuple[str, Any]]:
    """[(name, default of the class, or the number itself where the class has none of its type)]."""
    own = {name: getattr(kind, name, value) for name, value in numbers.items()}
    return [(name, own[name] if type(own[name]) is type(value) else value) for name, value in numbers.items()]
