"""A branch of a prompt: a continuation of its context with rows of its own."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kvbase.engine import _engine

    from .prompt import Prompt


class Branch:
    """A branch of a prompt: a question about its context, and what the model answered.

        branch = kv.open("trace.h5").prompt().branches[0]
        branch.name, branch.n_tokens, branch.input_tokens
        branch.layer(7)["q"].shape              # (Hq, Tb, D)

    `id`: "000", "001", ... `n_tokens`: Tb, rows of each layer. `input_tokens`: how many of them are the
    question. The rows follow the prompt's first `context_tokens` rows; no branch sees another one.
    """

    def __init__(self, prompt: "Prompt", number: int, facts: "_engine.BranchFacts"):
        self.prompt = prompt
        self.number = number
        self.id: str = facts.id
        self.name: str = facts.name
        self.n_tokens: int = facts.tokens
        self.input_tokens: int = facts.input_tokens

    @cached_property
    def position_ids(self) -> np.ndarray:
        """int32 [Tb]: positions of the rows, which continue those of the context."""
        return self._reader().branch_position_ids(self.prompt.id, self.number)

    @cached_property
    def token_ids(self) -> np.ndarray | None:
        """int32 [Tb]: ids of the tokens; None if not recorded."""
        ids = self._reader().branch_token_ids(self.prompt.id, self.number)
        return ids if len(ids) else None

    def layer(self, number: int) -> dict[str, np.ndarray]:
        """float32 rows of a layer: q [Hq, Tb, D], k [Hkv, Tb, D], v [Hkv, Tb, Dv]. TraceError if the trace
        does not hold the layer."""
        reader = self._reader(number)
        return {name: reader.branch_rows(self.prompt.id, self.number, number, name) for name in "qkv"}

    def _reader(self, layer: int | None = None) -> Any:
        one = self.prompt.layers[0] if layer is None else layer
        return self.prompt.trace._open(self.prompt.layer(one)._prompt)

    def __repr__(self) -> str:
        return f"<Branch {self.id} of {self.prompt!r}: {self.n_tokens} tokens>"
