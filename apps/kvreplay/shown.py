"""What a method in Python sees: the complete prompt, and the tokens that its cache holds."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .layer_inputs import InputsOf


class Prompt:
    """The complete prompt of one kv head, P tokens, as a scorer or Policy.start sees it.

        @kv.scorer(window=32)
        def votes(prompt):
            return prompt.attention(last=32).sum(axis=(0, 1))       # [P]

    G is the number of query heads that share the kv head. Arrays are copies that the method may keep or
    change. Nothing after the prompt is visible.
    """

    def __init__(
        self,
        view: Any,
        place: Mapping[str, Any],
        hand_out: Callable[..., np.ndarray],
        inputs_of: "InputsOf | None" = None,
    ):
        self._view, self._place, self._hand_out, self._inputs_of = view, place, hand_out, inputs_of
        self._all = np.arange(view.size)

    @property
    def size(self) -> int:
        """P, number of tokens of the prompt."""
        return self._view.size

    @property
    def scale(self) -> float:
        """Factor of the logits q.k, usually 1/sqrt(D)."""
        return self._view.scale

    @property
    def budget(self) -> int:
        """Tokens that the cache may keep, protected ones included. ValueError in a scorer without
        `uses_budget=True`."""
        if not self._place.get("sees_budget", True):
            raise ValueError("scores are shared by all budgets: write @kvreplay.scorer(uses_budget=True)")
        return self._place["budget"]

    @property
    def layer(self) -> int:
        """Number of the layer in the model, from 0."""
        return self._place["layer"]

    @property
    def n_layers(self) -> int:
        """Number of layers of the model."""
        return self._place["n_layers"]

    @property
    def kv_head(self) -> int:
        """Number of the kv head in the layer, from 0."""
        return self._place["kv_head"]

    @cached_property
    def keys(self) -> np.ndarray:
        """Keys [1, P, D] as attention sees them: float32, or float64 with precision="double"."""
        return self._hand_out(self._view.keys(), self._all, axis=1)

    @cached_property
    def values(self) -> np.ndarray:
        """Values [1, P, Dv], in the type of `keys`."""
        return self._hand_out(self._view.values(), self._all, axis=1)

    @cached_property
    def hidden(self) -> np.ndarray:
        """Hidden states float32 [P, hidden] that the layer's attention receives, in `kvreplay.live` alone.
        ValueError without `hidden=True`, or if no model runs."""
        if self._inputs_of is None:
            raise ValueError("hidden states must be asked for: write @kvreplay.scorer(hidden=True)")
        return self._inputs_of(self._place["prompt"], self.layer).prompt(self.size).hidden_states()

    @cached_property
    def positions(self) -> np.ndarray:
        """Position ids, int32 [P]."""
        return self._view.positions()

    def queries(self, last: int | None = None) -> np.ndarray:
        """Queries [G, rows, D] of the prompt's last rows. `last`: how many rows, at most the method's
        `window` (default: `window`). ValueError if it asks for more."""
        return self._last(self._queries, "queries", last)

    def attention(self, last: int | None = None) -> np.ndarray:
        """Exact attention probabilities float64 [G, rows, P] of the prompt's last rows over its tokens.
        `last` as in `queries`."""
        return self._last(self._attention, "attention", last)

    @cached_property
    def rng(self) -> np.random.Generator:
        """numpy Generator of this kv head and seed; its numbers do not depend on what else is replayed.
        ValueError without `random=True`."""
        if not self._place.get("random", True):
            raise ValueError("draws are repeated over seeds: write @kvreplay.scorer(random=True)")
        return generator(self._place)

    @cached_property
    def _queries(self) -> np.ndarray | None:
        return self._view.queries()

    @cached_property
    def _attention(self) -> np.ndarray | None:
        found = self._view.attention()
        return None if found is None else self._hand_out(found, self._all, axis=2)

    def _last(self, rows: np.ndarray | None, what: str, last: int | None) -> np.ndarray:
        held = 0 if rows is None else rows.shape[1]
        wanted = held if last is None else min(last, self.size)
        if rows is None or wanted > held:
            raise ValueError(
                f"prompt.{what}(last={last}) needs window={last}: the method asked for {held} rows"
            )
        return rows[:, held - wanted :]


class Tokens(np.ndarray):
    """The tokens that a cache holds: int32 [rows], ascending, indices into prompt and later tokens.

        class LeastAttended(kv.Policy):
            window, recent = 32, 32             # rows that start() may ask for; tokens that always stay

            def start(self, prompt, budget):    # scores [P] of the prompt's tokens
                return None if prompt is None else prompt.attention().sum(axis=(0, 1))

            def observe(self, tokens, p):       # p [query heads, rows]
                tokens.scores += p.sum(axis=0)

            def evict(self, tokens):
                order = np.argsort(tokens.scores[: -self.recent])
                return tokens[order[: len(tokens) - self.budget]]

    A slice or a selection is a plain array of tokens: only the object that a hook receives has `scores`,
    `keys` and `values`, and only during that call (ValueError otherwise).
    """

    _view: Any
    _hand_out: Any

    def __array_finalize__(self, _: Any) -> None:
        self._view = self._hand_out = None
        self._scores = None

    @property
    def scores(self) -> np.ndarray:
        """float64 [rows]: the policy's score of each token; change it in place. A score starts at 0, or at
        what start() returned, and is dropped when its token is evicted. It must stay finite."""
        if self._scores is None:
            self._scores = self._asked().scores()
        return self._scores

    @scores.setter
    def scores(self, values: Any) -> None:
        self.scores[:] = values

    @property
    def keys(self) -> np.ndarray:
        """Keys [1, rows, D] of the held tokens, as a copy."""
        return self._hand_out(self._asked().keys(), np.asarray(self), axis=1)

    @property
    def values(self) -> np.ndarray:
        """Values [1, rows, Dv] of the held tokens, as a copy."""
        return self._hand_out(self._asked().values(), np.asarray(self), axis=1)

    def _asked(self) -> Any:
        if self._view is None:
            raise ValueError(
                "only the tokens that a hook receives have scores, keys and values; a slice does not"
            )
        return self._view


def generator(place: Mapping[str, Any]) -> np.random.Generator:
    """Counter-based random numbers of one cache, keyed by (seed, prompt, layer, kv head, query head)."""
    key = [place[name] for name in ("seed", "prompt", "layer", "kv_head", "first_head")]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
