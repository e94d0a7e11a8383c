"""A layer of a prompt of a trace: its arrays and facts."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..trace_io.bits import Stored
from ..trace_io.metadata import LayerFacts, layer_path, open_layer_tensor
from ..trace_io.tensors import Tensor, open_array, read_float32, read_integers, read_only
from ..trace_io.walk import Node, fail
from .prompt import Prompt

if TYPE_CHECKING:
    from .trace import Trace

TENSORS = ("q", "k", "v", "out")


class Layer:
    """One layer of a prompt. Arrays are read when they are first asked for, stay with the layer, and are
    read-only: copy what you mean to change.

    Query head h reads kv head h // group. q and k are as the attention call sees them.
    """

    def __init__(self, trace: "Trace", prompt: str, facts: LayerFacts):
        self.trace = trace
        self._prompt = prompt
        self._facts = facts

    @cached_property
    def q(self) -> np.ndarray:
        """Queries [Hq, Tq, D]; float16 or float32 as stored, bfloat16 widened to float32 without rounding."""
        return self._floats("q")

    @cached_property
    def k(self) -> np.ndarray:
        """Keys [Hkv, T, D], in the types of `q`."""
        return self._floats("k")

    @cached_property
    def v(self) -> np.ndarray:
        """Values [Hkv, T, Dv], in the types of `q`."""
        return self._floats("v")

    @cached_property
    def out(self) -> np.ndarray | None:
        """The model's own attention output [Hq, Tq, Dv], in the types of `q`; None where not recorded."""
        return self._floats("out") if self._facts.has_out else None

    def raw(self, name: str) -> tuple[np.ndarray, str]:
        """(numbers of "q", "k", "v" or "out" as they are stored, "float32", "float16" or "bfloat16").

        bfloat16 numbers are their bits, uint16. Nothing is converted; where the file holds the numbers in one
        piece as memory would (no chunks, no compression, native byte order), the array is a read-only
        numpy.memmap of the file rather than a copy. The numbers are not looked at: NaN stays NaN.
        """
        stored = self._stored(name, mapped=True)
        return stored.array, stored.type.name

    def stored(self, name: str) -> Tensor:
        """One of "q", "k", "v" and "out" as the file holds it; good while the trace is open (`with
        trace:`)."""
        with self.trace._root() as root:
            return open_layer_tensor(root, self._prompt, self.number, name)

    def _floats(self, name: str) -> np.ndarray:
        stored = self._stored(name)
        wrong = stored.first_unusable()
        if wrong is not None:
            row = "query" if name in ("q", "out") else "token"
            fail(
                self._where(name),
                f"{stored.name_at(wrong)} at head {wrong[0]}, {row} {wrong[1]}, coordinate {wrong[2]}. "
                "Record the trace again, in a wider dtype if it overflowed",
            )
        return read_only(stored.floats())

    def _stored(self, name: str, mapped: bool = False) -> Stored:
        if name not in TENSORS:
            fail(str(self.trace.path), f"a layer has the tensors {', '.join(TENSORS)}, not {name}")
        with self.trace._root() as root:
            tensor = open_layer_tensor(root, self._prompt, self.number, name)
            window = tensor.mapped() if mapped else None
            stored = window or tensor.read()
        read_only(stored.array)
        return stored

    @cached_property
    def q_pos(self) -> np.ndarray:
        """int32 [Tq]: token of each query row, ascending; 0..Tq-1 where it is not recorded."""
        if not self._facts.has_q_pos:
            return read_only(np.arange(self.n_query_rows, dtype=np.int32))
        with self._group() as group:
            array = open_array(group, "q_pos")
            positions = read_integers(array, 0, self.n_tokens - 1)
            falls = np.flatnonzero(np.diff(positions) <= 0)
            if falls.size:
                at = int(falls[0])
                fail(array.node.where, f"must ascend, but {positions[at + 1]} follows {positions[at]}")
        return read_only(positions.astype(np.int32))

    @cached_property
    def sinks(self) -> np.ndarray | None:
        """float32 [Hq]: logits that join the denominator only, one a query head; None: there are none."""
        if not self._facts.has_sinks:
            return None
        with self._group() as group:
            array = open_array(group, "sinks")
            logits = read_float32(array)
            wrong = np.flatnonzero(~np.isfinite(logits))
            if wrong.size:
                fail(array.node.where, f"holds {logits[wrong[0]]} at head {wrong[0]}")
        return read_only(logits)

    @contextmanager
    def _group(self) -> Iterator[Node]:
        with self.trace._root() as root:
            yield root.at(layer_path(self._prompt, self.number))

    def _where(self, name: str) -> str:
        return f"{self.trace.path}: /{layer_path(self._prompt, self.number)}/{name}"

    @property
    def number(self) -> int:
        """In the model, from 0."""
        return self._facts.number

    @property
    def n_q_heads(self) -> int:
        """Hq, query heads."""
        return self._facts.shapes.q_heads

    @property
    def n_kv_heads(self) -> int:
        """Hkv, kv heads."""
        return self._facts.shapes.kv_heads

    @property
    def group(self) -> int:
        """Query heads of each kv head."""
        return self.n_q_heads // self.n_kv_heads

    @property
    def n_tokens(self) -> int:
        """T, rows of k and v."""
        return self._facts.shapes.n_tokens

    @property
    def n_query_rows(self) -> int:
        """Tq, rows of q; below T where queries are strided."""
        return self._facts.shapes.n_query_rows

    @property
    def head_dim(self) -> int:
        """D, numbers of a query or key."""
        return self._facts.shapes.head_dim

    @property
    def v_head_dim(self) -> int:
        """Dv, numbers of a value."""
        return self._facts.shapes.v_head_dim

    @property
    def dtype(self) -> str:
        """How k is stored: "float32", "float16" or "bfloat16"."""
        return self._facts.dtype

    @property
    def source_dtype(self) -> str:
        """What the model computed in, as far as the trace says; else `dtype`."""
        return self._facts.source_dtype

    @property
    def scaling(self) -> float:
        """Factor of the logit q.k."""
        return self._facts.scaling

    @property
    def sliding_window(self) -> int:
        """Row t sees rows t - window + 1..t; 0: all before it."""
        return self._facts.sliding_window

    @property
    def softcap(self) -> float:
        """Logits s become softcap * tanh(s / softcap); 0: they stay."""
        return self._facts.softcap

    @property
    def q_prescaled(self) -> bool:
        """Whether q carries the model's scaling already."""
        return self._facts.q_prescaled

    @property
    def rope(self) -> dict[str, Any] | None:
        """Rotary embedding that q and k carry: `type`, `theta`, `inv_freq`, `attention_factor`, `layout`,
        `rotary_dims`. None where there is none, or where the trace does not say (`rope_recorded`)."""
        return None if self._facts.rope is None else dict(self._facts.rope)

    @property
    def rope_recorded(self) -> bool:
        """Whether the trace says anything of rotary embedding, be it that there is none."""
        return self._facts.rope_recorded

    @property
    def has_out(self) -> bool:
        """Whether the model's own attention output is recorded."""
        return self._facts.has_out

    @cached_property
    def prompt(self) -> Prompt:
        """The prompt whose layer it is."""
        return Prompt(self.trace, self._prompt, self.n_tokens)

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return self.prompt.n_prompt

    @property
    def n_generated(self) -> int:
        """Tokens that the model generated."""
        return self.prompt.n_generated

    @property
    def position_ids(self) -> np.ndarray:
        """int32 [T]: positions of the tokens."""
        return self.prompt.position_ids

    @property
    def token_ids(self) -> np.ndarray | None:
        """int32 [T], or None."""
        return self.prompt.token_ids

    @property
    def token_classes(self) -> np.ndarray | None:
        """uint8 [T], or None."""
        return self.prompt.token_classes

    @property
    def token_text(self) -> list[str] | None:
        """Strings [T], or None."""
        return self.prompt.token_text

    def __reduce__(self) -> tuple[Any, tuple["Trace", int, str]]:
        return type(self.trace).layer, (self.trace, self.number, self._prompt)

    def __repr__(self) -> str:
        return (
            f"<Layer {self.number} of {self.trace.path.name}, prompt {self._prompt}: {heads_text(self)}, "
            f"{self.n_tokens} tokens, {self.dtype}>"
        )


def heads_text(layer: Layer) -> str:
    """Its heads in words: 9 query heads on 3 kv heads of 64; the width of values where it is another."""
    width = str(layer.head_dim)
    if layer.v_head_dim != layer.head_dim:
        width += f" (values {layer.v_head_dim})"
    return f"{layer.n_q_heads} query heads on {layer.n_kv_heads} kv heads of {width}"
