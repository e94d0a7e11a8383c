"""What a method in Python is shown: the prompt at its end, and the tokens that its cache holds."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np


class Prompt:
    """The prompt of one kv head at its end, as a method is shown it: P tokens, of the heads that decide
    together.

    Arrays are copies that the method may keep or change.
    """

    def __init__(self, view: Any, place: Mapping[str, Any], hand_out: Callable[..., np.ndarray]):
        self._view, self._place, self._hand_out = view, place, hand_out
        self._all = np.arange(view.size)

    @property
    def size(self) -> int:
        """P, tokens of the prompt."""
        return self._view.size

    @property
    def scale(self) -> float:
        """Factor of the logits q.k."""
        return self._view.scale

    @property
    def budget(self) -> int:
        """Tokens that may stay, protected ones included; of a scorer with `uses_budget`."""
        if not self._place.get("sees_budget", True):
            raise ValueError("scores are shared by all budgets: write @kvreplay.scorer(uses_budget=True)")
        return self._place["budget"]

    @property
    def layer(self) -> int:
        """In the model, from 0."""
        return self._place["layer"]

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self._place["n_layers"]

    @property
    def kv_head(self) -> int:
        """In the layer, from 0."""
        return self._place["kv_head"]

    @cached_property
    def keys(self) -> np.ndarray:
        """[1, P, D]: keys of the kv head as attention sees them, float32 (float64 with
        precision="double")."""
        return self._hand_out(self._view.keys(), self._all, axis=1)

    @cached_property
    def values(self) -> np.ndarray:
        """[1, P, Dv]: values of the kv head."""
        return self._hand_out(self._view.values(), self._all, axis=1)

    @cached_property
    def positions(self) -> np.ndarray:
        """int32 [P]: position ids."""
        return self._view.positions()

    def queries(self, last: int | None = None) -> np.ndarray:
        """[query heads, rows, D]: queries of the last rows, at most `window` of them (default: all of
        these)."""
        return self._last(self._queries, "queries", last)

    def attention(self, last: int | None = None) -> np.ndarray:
        """float64 [query heads, rows, P]: exact attention probabilities of the last rows over the prompt's
        tokens, at most `window` rows (default: all of these)."""
        return self._last(self._attention, "attention", last)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers of this kv head and seed: the same whatever else is replayed."""
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
    """int32 [rows]: the tokens that a cache holds, ascending. A slice of it is a plain choice of tokens."""

    _view: Any
    _hand_out: Any

    def __array_finalize__(self, _: Any) -> None:
        self._view = self._hand_out = None
        self._scores = None

    @property
    def scores(self) -> np.ndarray:
        """float64 [rows]: what the policy remembers of each token. Change it in place; it starts at 0, or at
        what start() returned, stays with the token and goes with it."""
        if self._scores is None:
            self._scores = self._asked().scores()
        return self._scores

    @scores.setter
    def scores(self, values: Any) -> None:
        self.scores[:] = values

    @property
    def keys(self) -> np.ndarray:
        """[1, rows, D]: a copy of the keys that are held."""
        return self._hand_out(self._asked().keys(), np.asarray(self), axis=1)

    @property
    def values(self) -> np.ndarray:
        """[1, rows, Dv]: a copy of the values that are held."""
        return self._hand_out(self._asked().values(), np.asarray(self), axis=1)

    def _asked(self) -> Any:
        if self._view is None:
            raise ValueError(
                "only the tokens that a call was given know scores, keys and values; a slice does not"
            )
        return self._view


def generator(place: Mapping[str, Any]) -> np.random.Generator:
    """Counter-based random numbers of one cache: (seed, prompt, layer, kv head, query head)."""
    key = [place[name] for name in ("seed", "prompt", "layer", "kv_head", "first_head")]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
