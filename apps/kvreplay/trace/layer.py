"""One layer of a trace's prompt: arrays and facts."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from kvtrace.bits import Stored
from kvtrace.metadata import LayerFacts, layer_path, open_layer_tensor
from kvtrace.tensors import open_array, read_float32, read_integers, read_only
from kvtrace.walk import Node, fail

from .prompt import Prompt

if TYPE_CHECKING:
    from .trace import Trace

TENSORS = ("q", "k", "v", "out")


class Layer:
    """One layer of a prompt: q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv] and the facts of its attention.

        layer = kv.open("trace.h5").layer(7)
        logits = layer.scaling * layer.q[0] @ layer.k[0].T          # [Tq, T] of query head 0

    q and k are as the attention call sees them, after rotary embedding. Query head h reads kv head
    h // group. Arrays are read on first access, cached, and read-only: copy an array to change it.
    """

    def __init__(self, trace: "Trace", prompt: str, facts: LayerFacts):
        self.trace = trace
        self._prompt = prompt
        self._facts = facts

    @cached_property
    def q(self) -> np.ndarray:
        """Queries [Hq, Tq, D]: float16 or float32 as stored; bfloat16 is widened to float32, exactly.
        TraceError if the array holds NaN or infinity."""
        return self._floats("q")

    @cached_property
    def k(self) -> np.ndarray:
        """Keys [Hkv, T, D]; types and errors as for `q`."""
        return self._floats("k")

    @cached_property
    def v(self) -> np.ndarray:
        """Values [Hkv, T, Dv]; types and errors as for `q`."""
        return self._floats("v")

    @cached_property
    def out(self) -> np.ndarray | None:
        """The model's attention output [Hq, Tq, Dv], types as for `q`; None if not recorded."""
        return self._floats("out") if self._facts.has_out else None

    def raw(self, name: str) -> tuple[np.ndarray, str]:
        """The array "q", "k", "v" or "out" as stored, and its type: "float32", "float16" or "bfloat16".

        Nothing is converted or checked: bfloat16 comes as its bits (uint16), and NaN stays NaN. If the file
        holds the array contiguously (no chunks, no compression, native byte order), the result is a
        read-only numpy.memmap instead of a copy.
        """
        stored = self._stored(name, mapped=True)
        return stored.array, stored.type.name

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
        """int32 [Tq]: token of each query row, ascending; 0..Tq-1 if not recorded."""
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
        """Attention sinks, float32 [Hq]: one logit per query head that is added to the softmax's denominator
        only; None if the layer has none."""
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
        """Number of the layer in the model, from 0."""
        return self._facts.number

    @property
    def n_q_heads(self) -> int:
        """Hq, number of query heads."""
        return self._facts.shapes.q_heads

    @property
    def n_kv_heads(self) -> int:
        """Hkv, number of kv heads."""
        return self._facts.shapes.kv_heads

    @property
    def group(self) -> int:
        """Query heads per kv head, Hq / Hkv."""
        return self.n_q_heads // self.n_kv_heads

    @property
    def n_tokens(self) -> int:
        """T, number of tokens: rows of k and v."""
        return self._facts.shapes.n_tokens

    @property
    def n_query_rows(self) -> int:
        """Tq, rows of q; less than T if queries are strided."""
        return self._facts.shapes.n_query_rows

    @property
    def head_dim(self) -> int:
        """D, width of a query or key."""
        return self._facts.shapes.head_dim

    @property
    def v_head_dim(self) -> int:
        """Dv, width of a value."""
        return self._facts.shapes.v_head_dim

    @property
    def dtype(self) -> str:
        """Stored type of k: "float32", "float16" or "bfloat16"."""
        return self._facts.dtype

    @property
    def source_dtype(self) -> str:
        """Type in which the model computed; `dtype` if not recorded."""
        return self._facts.source_dtype

    @property
    def scaling(self) -> float:
        """Factor of the logits q.k, usually 1/sqrt(D)."""
        return self._facts.scaling

    @property
    def sliding_window(self) -> int:
        """Sliding window in tokens: row t sees rows t - window + 1..t. 0: row t sees rows 0..t."""
        return self._facts.sliding_window

    @property
    def softcap(self) -> float:
        """Soft cap: logits s become softcap * tanh(s / softcap). 0: no cap."""
        return self._facts.softcap

    @property
    def q_prescaled(self) -> bool:
        """Whether q already includes the model's scaling."""
        return self._facts.q_prescaled

    @property
    def rope(self) -> dict[str, Any] | None:
        """Rotary embedding of q and k: `type`, `theta`, `inv_freq`, `attention_factor`, `layout`,
        `rotary_dims`. None if there is none or it is not recorded (see `rope_recorded`)."""
        return None if self._facts.rope is None else dict(self._facts.rope)

    @property
    def rope_recorded(self) -> bool:
        """Whether the trace records the rotary embedding, including that there is none."""
        return self._facts.rope_recorded

    @property
    def has_out(self) -> bool:
        """Whether the model's attention output `out` is recorded."""
        return self._facts.has_out

    @cached_property
    def prompt(self) -> Prompt:
        """The prompt that this layer belongs to."""
        return Prompt(self.trace, self._prompt, self.n_tokens)

    @property
    def n_prompt(self) -> int:
        """Number of tokens of the prompt; see Prompt."""
        return self.prompt.n_prompt

    @property
    def n_generated(self) -> int:
        """Number of tokens that the model generated."""
        return self.prompt.n_generated

    @property
    def position_ids(self) -> np.ndarray:
        """int32 [T]: positions of the tokens; 0..T-1 if not recorded."""
        return self.prompt.position_ids

    @property
    def token_ids(self) -> np.ndarray | None:
        """int32 [T]: ids of the tokens; None if not recorded."""
        return self.prompt.token_ids

    @property
    def token_classes(self) -> np.ndarray | None:
        """uint8 [T]: 0 word, 1 punctuation, 2 special; None if not recorded."""
        return self.prompt.token_classes

    @property
    def token_text(self) -> list[str] | None:
        """Text of each token, [T] str; None if not recorded."""
        return self.prompt.token_text

    def __reduce__(self) -> tuple[Any, tuple["Trace", int, str]]:
        return type(self.trace).layer, (self.trace, self.number, self._prompt)

    def __repr__(self) -> str:
        return (
            f"<Layer {self.number} of {self.trace.path.name}, prompt {self._prompt}: {heads_text(self)}, "
            f"{self.n_tokens} tokens, {self.dtype}>"
        )


def heads_text(layer: Layer) -> str:
    """The heads in words, "9 query heads on 3 kv heads of 64", and the width of values if it differs."""
    width = str(layer.head_dim)
    if layer.v_head_dim != layer.head_dim:
        width += f" (values {layer.v_head_dim})"
    return f"{layer.n_q_heads} query heads on {layer.n_kv_heads} kv heads of {width}"
