"""Methods in Python that score all kv heads of a layer at once, on tensors of torch where the model has
them."""

import copy
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .hosting import ENGINES, Hosted, with_types
from .layer_inputs import NO_HIDDEN, InputsOf, LayerInputs

LAYERS_HELD = 4  # layers whose scores are kept: heads of one layer are replayed about the same time


class LayerScorer(Hosted):
    """A one-shot method that scores all kv heads of a layer in one call.

    `facts` as in Hosted. `bound` gives it the layers of a replay; only then can it decide.
    """

    def __init__(self, facts: dict[str, Any]):
        self.facts = facts
        self._inputs_of: InputsOf | None = None
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[Any, np.ndarray] = OrderedDict()

    def bound(self, inputs_of: InputsOf) -> "LayerScorer":
        """This method for the layers of one replay."""
        own = copy.copy(self)
        own._inputs_of = inputs_of
        own._forget()
        return own

    def scores(self, inputs: LayerInputs, budget: int, params: Mapping[str, Any]) -> Any:
        """Scores [Hkv, P] of a prompt's tokens; those with the largest are kept."""
        raise NotImplementedError

    def cache(self, place: dict[str, Any]) -> "LayerCache":
        return LayerCache(self, place)

    def of_layer(self, place: Mapping[str, Any]) -> np.ndarray:
        """float64 [Hkv, P]: scores of the layer of a place, computed once for all of its heads."""
        budget = place["budget"] if self.facts["sees_budget"] else None
        params = with_types(place["params"], self.facts["parameters"])
        name = (
            place["prompt"],
            place["layer"],
            place["prompt_tokens"],
            budget,
            json.dumps(params, sort_keys=True),
        )
        with self._lock:
            if name not in self._held:
                self._held[name] = self._checked(place, params)
                while len(self._held) > LAYERS_HELD:
                    self._held.popitem(last=False)
            return self._held[name]

    def _checked(self, place: Mapping[str, Any], params: Mapping[str, Any]) -> np.ndarray:
        import torch

        if self._inputs_of is None:
            raise ValueError("it scores whole layers: run it by kvreplay.replay or kvreplay.live")
        size = place["prompt_tokens"]
        inputs = self._inputs_of(place["prompt"], place["layer"]).prompt(size)
        own = {name: value for name, value in params.items() if name not in ENGINES}
        with torch.no_grad():
            given = self.scores(inputs, place["budget"], own)
        if given is None:
            raise ValueError(f"returned None: return scores [{len(inputs.k)}, {size}], [kv heads, tokens]")
        scores = torch.as_tensor(given).detach().double().cpu().numpy()
        heads = inputs.k.shape[0]
        if scores.shape == (1, heads, size):
            scores = scores[0]
        if scores.shape != (heads, size):
            raise ValueError(
                f"returned {list(scores.shape)} scores: return [{heads}, {size}], [kv heads, tokens]"
            )
        return scores


class LayerCache:
    """One cache of a LayerScorer."""

    def __init__(self, method: LayerScorer, place: dict[str, Any]):
        self.method, self.place = method, place

    def score(self, view: Any) -> np.ndarray:
        """Scores [P] of the cache's kv head."""
        scores = self.method.of_layer(self.place)
        head = self.place["kv_head"]
        if head >= len(scores):
            raise ValueError("it scores each kv head: leave gqa.level out")
        return np.ascontiguousarray(scores[head])


class TorchScorer(LayerScorer):
    """A function score(q, k, v) on tensors of torch. It can still be called as that function."""

    def __init__(self, function: Callable[..., Any], facts: dict[str, Any], takes_hidden: bool):
        super().__init__(facts)
        self.function, self.needs_hidden = function, takes_hidden
        self.__name__, self.__doc__ = facts["name"], function.__doc__

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self.function(*args, **more)

    def scores(self, inputs: LayerInputs, budget: int, params: Mapping[str, Any]) -> Any:
        if self.needs_hidden and inputs.hidden is None:
            raise ValueError(NO_HIDDEN)
        # Copies: the function may work in place, and the model's cache and other methods read these tensors.
        hidden = {"hidden": inputs.hidden.clone()} if self.needs_hidden else {}
        return self.function(inputs.q.clone(), inputs.k.clone(), inputs.v.clone(), **hidden, **params)

    def same_as(self, other: Hosted) -> bool:
        return (
            isinstance(other, TorchScorer) and self.function is other.function and self.facts == other.facts
        )
