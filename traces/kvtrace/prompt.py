"""A prompt of a trace and the tokens after it."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .branch import Branch
from .disk_file import open_hdf5
from .task import task_of
from .write_turns import KINDS

if TYPE_CHECKING:
    from kvbase.engine import _engine

    from .layer import Layer
    from .trace import Trace


class Prompt:
    """One prompt of a trace and the tokens after it: T tokens, the first `n_prompt` of which are the prompt.

        prompt = kv.open("trace.h5").prompt()
        prompt.id, prompt.n_tokens, prompt.n_prompt, prompt.layers

    `id`: its name in the trace. `n_tokens`: T. Properties raise TraceError if the file is damaged.
    """

    def __init__(self, trace: "Trace", facts: "_engine.PromptFacts"):
        self.trace = trace
        self._facts = facts
        self.id: str = facts.id
        self.n_tokens: int = facts.tokens

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
    def segments(self) -> list[tuple[int, int, str, str]]:
        """Turns: (first token, end, "context", "input" or "output", name) of each; [] if not recorded."""
        facts = self._facts.segments
        names = facts.names or [""] * len(facts.kind)
        kinds = (KINDS[kind] for kind in facts.kind)
        return list(zip(facts.start, facts.start[1:], kinds, names, strict=False))

    @property
    def branches(self) -> list[Branch]:
        """Branches behind the prompt's first `context_tokens` tokens; [] if there are none."""
        return [Branch(self, number, facts) for number, facts in enumerate(self._facts.branches)]

    @property
    def context_tokens(self) -> int:
        """Tokens that all branches continue; 0 if there are no branches."""
        return self._facts.context_tokens

    @property
    def source(self) -> str:
        """Where the prompt comes from; "" if not recorded."""
        return self._facts.source

    @cached_property
    def task(self) -> dict[str, Any] | None:
        """The task that an answer is scored with (name, question, answers, score, ...); None if not
        recorded."""
        return task_of(self._attributes.get("task_json"), f"{self.trace.path}: /prompts/{self.id}")

    @property
    def needle_tokens(self) -> np.ndarray | None:
        """int32 [n, 2]: tokens [from, to) of each needle of the task; None if not recorded."""
        spans = self._attributes.get("needle_tokens")  # the engine has checked it
        return None if spans is None else np.asarray(spans, dtype=np.int32)

    @cached_property
    def _attributes(self) -> dict[str, Any]:
        """The prompt's task, which the engine does not read, and the tokens of its needles."""
        with open_hdf5(self.trace.path) as file:
            attributes = file[f"prompts/{self.id}"].attrs
            return {name: attributes[name] for name in ("task_json", "needle_tokens") if name in attributes}

    @cached_property
    def position_ids(self) -> np.ndarray:
        """int32 [T]: positions of the tokens; 0..T-1 if not recorded."""
        return self.trace._open(self._facts).position_ids(self.id)

    @property
    def odd_positions(self) -> str:
        """How `position_ids` deny that rows are one whole sequence (padding, a cut cache), and what to
        do about it; "" for 0, 1, 2, ..."""
        return self._facts.odd_positions

    @cached_property
    def token_ids(self) -> np.ndarray | None:
        """int32 [T]: ids of the tokens; None if not recorded."""
        return self.trace._open(self._facts).token_ids(self.id) if self._facts.has_tokens else None

    @cached_property
    def token_classes(self) -> np.ndarray | None:
        """uint8 [T]: 0 word, 1 punctuation, 2 special; None if not recorded."""
        return self.trace._open(self._facts).token_classes(self.id) if self._facts.has_classes else None

    @cached_property
    def token_text(self) -> list[str] | None:
        """Text of each token, decoded alone, [T] str; None if not recorded."""
        return self.trace._open(self._facts).token_texts(self.id)

    def __reduce__(self) -> tuple[Any, tuple["Trace", str]]:
        return type(self.trace).prompt, (self.trace, self.id)

    def __repr__(self) -> str:
        return f"<Prompt {self.id} of {self.trace.path.name}: {self.n_tokens} tokens>"
