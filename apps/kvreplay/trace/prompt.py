"""A prompt of a trace and the tokens after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from kvtrace.metadata import PromptFacts, read_prompt
from kvtrace.shapes import MOST_TOKENS
from kvtrace.tensors import expect_integers, open_array, read_integers, read_only
from kvtrace.walk import Node, fail, reading

if TYPE_CHECKING:
    from .layer import Layer
    from .trace import Trace

LAST_TOKEN_CLASS = 2  # classes: 0 word, 1 punctuation, 2 special


class Prompt:
    """One prompt of a trace and the tokens after it: T tokens, the first `n_prompt` of which are the prompt.

        prompt = kv.open("trace.h5").prompt()
        prompt.id, prompt.n_tokens, prompt.n_prompt, prompt.layers

    `id`: its name in the trace. `n_tokens`: T. Properties raise TraceError if the file is damaged.
    """

    def __init__(self, trace: "Trace", prompt: str, n_tokens: int):
        self.trace = trace
        self.id = prompt
        self.n_tokens = n_tokens

    @cached_property
    def _facts(self) -> PromptFacts:
        with self.trace._root() as root:
            return read_prompt(root, self.id, self.n_tokens)

    @property
    def layers(self) -> list[int]:
        """Numbers of the recorded layers, ascending."""
        return self.trace.layers(self.id)

    def layer(self, number: int) -> "Layer":
        """A recorded layer. TraceError if the trace does not hold it."""
        return self.trace.layer(number, self.id)

    @property
    def n_prompt(self) -> int:
        """Number of tokens of the prompt; T if not recorded."""
        return self._facts.n_prompt

    @property
    def n_generated(self) -> int:
        """Number of tokens that the model generated; T - n_prompt if not recorded."""
        return self._facts.n_generated

    @property
    def question_from(self) -> int | None:
        """Index of the first token of the question at the end of the prompt; None if not recorded."""
        return self._facts.question_from

    @property
    def source(self) -> str:
        """Where the prompt comes from; "" if not recorded."""
        return self._facts.source

    @cached_property
    def position_ids(self) -> np.ndarray:
        """int32 [T]: positions of the tokens; 0..T-1 if not recorded."""
        found = self._integers("position_ids", 0, MOST_TOKENS)
        return read_only(np.arange(self.n_tokens, dtype=np.int32)) if found is None else found

    @cached_property
    def token_ids(self) -> np.ndarray | None:
        """int32 [T]: ids of the tokens; None if not recorded."""
        return self._integers("tokens", -MOST_TOKENS - 1, MOST_TOKENS)

    @cached_property
    def token_classes(self) -> np.ndarray | None:
        """uint8 [T]: 0 word, 1 punctuation, 2 special; None if not recorded."""
        found = self._integers("token_class", 0, LAST_TOKEN_CLASS)
        return None if found is None else read_only(found.astype(np.uint8))

    @cached_property
    def token_text(self) -> list[str] | None:
        """Text of each token, decoded alone, [T] str; None if not recorded."""
        with self._group() as group:
            if not group.has("token_text"):
                return None
            array = open_array(group, "token_text")
            with reading(array.node.where):
                texts = [str(text) for text in array.dataset.asstr()[()]]
            if len(texts) != self.n_tokens:
                fail(array.node.where, f"holds {len(texts)} texts for {self.n_tokens} tokens")
            return texts

    def _integers(self, name: str, low: int, high: int) -> np.ndarray | None:
        with self._group() as group:
            if not group.has(name):
                return None
            array = open_array(group, name)
            expect_integers(array, self.n_tokens)
            return read_only(read_integers(array, low, high).astype(np.int32))

    @contextmanager
    def _group(self) -> Iterator[Node]:
        with self.trace._root() as root:
            yield root.at(f"prompts/{self.id}")

    def __reduce__(self) -> tuple[type, tuple["Trace", str, int]]:
        return type(self), (self.trace, self.id, self.n_tokens)

    def __repr__(self) -> str:
        return f"<Prompt {self.id} of {self.trace.path.name}: {self.n_tokens} tokens>"
