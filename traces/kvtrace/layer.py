"""One layer of a trace's prompt: arrays and facts."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .prompt import Prompt
from .write import TENSORS, fail

if TYPE_CHECKING:
    from kvbase.engine import _engine

    from .trace import Trace

# With latent attention; q, rope_k and up_k as recorded.
LATENT_TENSORS = ("q", "latent", "rope_k", "up_k", "up_v", "out")
# How numpy holds the engine's types; it has no bfloat16.
NUMPY_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


class Layer:
    """One layer of a prompt: q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv] and the facts of its attention.

        layer = kv.open("trace.h5").layer(7)
        logits = layer.scaling * layer.q[0] @ layer.k[0].T          # [Tq, T] of query head 0

    q and k are as the attention call sees them, after rotary embedding. Query head h reads kv head
    h // group. Arrays are read on first access, cached, and read-only: copy an array to change it.

    With latent attention (`latent`) the layer has one kv head, whose keys are the rotated part and the latent
    of each token, and whose values are the latents. q is projected to such keys, and `up_v` makes the output
    of each query head from its sum over latents.
    """

    def __init__(self, trace: "Trace", prompt: "_engine.PromptFacts"):
        self.trace = trace
        self._prompt = prompt
        self._facts = prompt.layer

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

    @property
    def latent(self) -> dict[str, int] | None:
        """Latent attention: numbers of a latent (`width`), of the rotated part beside it (`rope`), of a
        recorded query without that part (`key`; 0: it was recorded projected) and of a head's value
        (`value`). None if the layer has keys and values of its own."""
        return self._facts.latent

    @cached_property
    def up_v(self) -> np.ndarray | None:
        """Latent attention: float32 [Hq, width, value], what makes a query head's value from a latent; else
        None."""
        return self._floats("up_v") if self.latent else None

    @cached_property
    def out(self) -> np.ndarray | None:
        """The model's attention output [Hq, Tq, Dv], types as for `q`; None if not recorded."""
        return self._floats("out") if self._facts.has_out else None

    def raw(self, name: str) -> tuple[np.ndarray, str]:
        """The array "q", "k", "v" or "out" (with latent attention "q", "latent", "rope_k", "up_k", "up_v" or
        "out") as stored, and its type: "float32", "float16" or "bfloat16".

        Nothing is converted or checked: bfloat16 comes as its bits (uint16), and NaN stays NaN. If the file
        holds the array contiguously (no chunks, no compression, native byte order), the result is a
        read-only numpy.memmap instead of a copy.
        """
        names = LATENT_TENSORS if self.latent else TENSORS
        if name not in names:
            fail(str(self.trace.path), f"the layer has the tensors {', '.join(names)}, not {name}")
        here = (self._prompt.id, self.number, name)
        reader = self.trace._open(self._prompt)
        dtype, shape, place = reader.storage(*here)
        if place is None:
            return reader.raw(*here).view(NUMPY_TYPES[dtype]), dtype
        file, offset = place
        return np.memmap(file, NUMPY_TYPES[dtype], "r", offset, tuple(shape)), dtype

    def _floats(self, name: str) -> np.ndarray:
        here = (self._prompt.id, self.number, name)
        reader = self.trace._open(self._prompt)
        if self.latent and name != "out":
            return reader.rows(*here)
        array = reader.floats(*here)
        if reader.storage(*here)[0] == "float16":
            array = array.astype(np.float16)
            array.flags.writeable = False
        return array

    @cached_property
    def q_pos(self) -> np.ndarray:
        """int32 [Tq]: token of each query row, ascending; 0..Tq-1 if not recorded."""
        return self.trace._open(self._prompt).query_positions(self._prompt.id, self.number)

    @cached_property
    def sinks(self) -> np.ndarray | None:
        """Attention sinks, float32 [Hq]: one logit per query head that is added to the softmax's denominator
        only; None if the layer has none."""
        if not self._facts.has_sinks:
            return None
        return self.trace._open(self._prompt).sink_logits(self._prompt.id, self.number)

    @property
    def number(self) -> int:
        """Number of the layer in the model, from 0."""
        return self._facts.number

    @property
    def n_q_heads(self) -> int:
        """Hq, number of query heads."""
        return self._facts.q_heads

    @property
    def n_kv_heads(self) -> int:
        """Hkv, number of kv heads."""
        return self._facts.kv_heads

    @property
    def kv_layer(self) -> int | None:
        """Number of the layer whose keys and values this one reads; None if it has its own."""
        return self._facts.kv_layer

    @property
    def group(self) -> int:
        """Query heads per kv head, Hq / Hkv."""
        return self.n_q_heads // self.n_kv_heads

    @property
    def n_tokens(self) -> int:
        """T, number of tokens: rows of k and v."""
        return self._facts.tokens

    @property
    def n_query_rows(self) -> int:
        """Tq, rows of q; less than T if queries are strided."""
        return self._facts.query_rows

    @property
    def head_dim(self) -> int:
        """D, width of a query or key."""
        return self._facts.head_dim

    @property
    def v_head_dim(self) -> int:
        """Dv, width of a value."""
        return self._facts.v_head_dim

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
    def attention_chunk(self) -> int:
        """Tokens of a chunk: row t sees the rows of its own chunk, t - t % chunk..t. 0: there are no
        chunks."""
        return self._facts.attention_chunk

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
        return self._facts.rope

    @property
    def rope_unknown(self) -> bool:
        """Whether keys are rotated in a way that a trace cannot say."""
        return self._facts.rope_unknown

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
        return Prompt(self.trace, self._prompt)

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
        return type(self.trace).layer, (self.trace, self.number, self._prompt.id)

    def __repr__(self) -> str:
        return (
            f"<Layer {self.number} of {self.trace.path.name}, prompt {self._prompt.id}: {heads_text(self)}, "
            f"{self.n_tokens} tokens, {self.dtype}>"
        )


def heads_text(layer: Layer) -> str:
    """The heads in words, "9 query heads on 3 kv heads of 64", and the width of values if it differs."""
    width = str(layer.head_dim)
    if layer.v_head_dim != layer.head_dim:
        width += f" (values {layer.v_head_dim})"
    return f"{layer.n_q_heads} query heads on {layer.n_kv_heads} kv heads of {width}"
