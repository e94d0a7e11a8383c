"""Traces in Python: recorded queries, keys and values as numpy arrays.

    trace = kvreplay.open("trace.h5")
    layer = trace.layer(7)
    layer.q                     # [Hq, Tq, D], read when it is first asked for
    kvreplay.Trace.write("mine.h5", {7: (q, k, v)})

What a trace holds and what is taken where it says nothing stands in docs/formats.md.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .errors import TraceError
from .trace_io.bits import Stored
from .trace_io.content_id import content_id
from .trace_io.metadata import (
    FileFacts,
    LayerFacts,
    PromptFacts,
    layer_path,
    open_layer_tensor,
    read_file,
    read_layer,
    read_prompt,
)
from .trace_io.shapes import MOST_TOKENS
from .trace_io.tensors import Tensor, expect_integers, open_array, read_float32, read_integers
from .trace_io.walk import Node, OpenFiles, fail, reading
from .trace_io.write import LayerArrays, PromptArrays, write_trace

__all__ = ["Layer", "LayerArrays", "Prompt", "PromptArrays", "Trace", "open"]

TENSORS = ("q", "k", "v", "out")
LAST_TOKEN_CLASS = 2  # word, punctuation, special


def open(path: str | Path) -> "Trace":
    """The trace at `path`: an HDF5 file, or a folder with an index.h5. TraceError where it is none."""
    trace = Trace(path)
    trace.layers()
    return trace


class Trace:
    """A trace file, or the index.h5 of a large dump; a folder stands for the index.h5 in it.

    The file is opened for each call and closed behind it, unless the trace is used as a context manager:
    then it stays open until the block ends. A trace can be pickled; what is pickled is its path.

    Wherever a prompt is asked for, None is the only one, or the first of several in the order of their ids.
    Every method raises TraceError, naming file and dataset, where the file is damaged or contradicts itself.
    """

    def __init__(self, path: str | Path):
        given = Path(path)
        self.path: Path = given / "index.h5" if (given / "index.h5").is_file() else given
        _check_name(self.path)
        self._held: OpenFiles | None = None
        self._layers: dict[tuple[str, int], LayerFacts] = {}

    @classmethod
    def write(
        cls,
        path: str | Path,
        layers: Mapping[int, Any] | None = None,
        *,
        prompts: Mapping[str, Any] | None = None,
        prompt: str = "p0",
        n_prompt: int | None = None,
        n_generated: int | None = None,
        n_layers: int | None = None,
        model: str = "",
        revision: str = "",
        rope: Mapping[str, Any] | str | None = None,
        token_ids: Any = None,
        token_classes: Any = None,
        token_text: Any = None,
        position_ids: Any = None,
        source: str = "",
        compress: bool = False,
    ) -> "Trace":
        """Write arrays as a trace file, whole or not at all, and return it.

        layers: {number in the model, from 0: (q, k, v)} with q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv],
            Hq a multiple of Hkv; q and k as the attention call sees them, behind rotary embedding and norms.
            Instead of the tuple a LayerArrays, or a mapping with its names, says more of a layer (scaling,
            sliding window, soft cap, rope, sinks, q_pos, out); a Layer of another trace is taken as it is.
            A mapping may be lazy: each layer is asked for once, written, and let go.
            Arrays are float32, float16 or bfloat16, of numpy (ml_dtypes), torch, jax or cupy.
        prompts: {id: PromptArrays, or a mapping with its names} for several prompts, instead of `layers`,
            `prompt` and everything that belongs to a prompt.
        prompt: id of the one prompt.
        n_prompt: tokens of the prompt, from 1 to T; what follows was generated. Default: all.
        n_generated: tokens that were generated. Default: those behind n_prompt.
        n_layers: layers of the model. Default: one more than the last that is given.
        model, revision: of the model; free text.
        rope: rotary embedding that q and k carry, as `rope_json` (docs/formats.md), at least {"theta": ...};
            "none" where there is none. Default: not recorded, so that positions cannot be re-assigned.
        token_ids, position_ids: integers [T]. token_classes: integers [T], 0 word, 1 punctuation, 2 special.
        token_text: strings [T]. source: where the prompt is from.
        compress: gzip; it saves little.

        The trace's id is that of its content: equal arrays and facts give an equal id.

        Raises TraceError where arrays or facts do not fit, naming layer and array, and OutputError where the
        file cannot be written; then nothing stands at `path` that did not before.
        """
        alone = PromptArrays(
            layers=layers if layers is not None else {},
            n_prompt=n_prompt,
            n_generated=n_generated,
            token_ids=token_ids,
            token_classes=token_classes,
            token_text=token_text,
            position_ids=position_ids,
            source=source,
        )
        if (prompts is None) == (layers is None):
            fail(str(path), "give either layers, of one prompt, or prompts")
        of_a_prompt = (value for name, value in vars(alone).items() if name != "layers")
        if prompts is not None and any(value is not None and not _is_empty(value) for value in of_a_prompt):
            fail(str(path), "what belongs to a prompt stands in its entry of prompts")
        write_trace(
            Path(path),
            {prompt: alone} if prompts is None else prompts,
            {"model": model or None, "revision": revision or None, "n_layers": n_layers},
            rope,
            compress,
        )
        return cls(path)

    # ---- what it holds

    @cached_property
    def _facts(self) -> FileFacts:
        with self._root() as root:
            return read_file(root)

    @property
    def model(self) -> str:
        """Name of the model, "unknown" where it is not recorded."""
        return self._facts.model

    @property
    def revision(self) -> str:
        """Revision of the model, empty where it is not recorded."""
        return self._facts.revision

    @property
    def n_layers(self) -> int:
        """Layers of the model, of which the trace may hold a few."""
        return self._facts.n_layers

    @cached_property
    def trace_id(self) -> str:
        """Identity of the content, as `kvreplay inspect` prints it. A file that carries none is read as a
        whole to find it."""
        if self._facts.trace_id:
            return self._facts.trace_id
        with self._root() as root:
            return content_id(root, self._facts)

    @property
    def prompts(self) -> list[str]:
        """Ids of the prompts, sorted."""
        return list(self._facts.layers)

    def layers(self, prompt: str | None = None) -> list[int]:
        """Numbers of the layers that are recorded of a prompt, ascending, from 0 as the model counts them."""
        return list(self._facts.layers[self._prompt_id(prompt)])

    def prompt(self, prompt: str | None = None) -> "Prompt":
        """A prompt: its lengths, tokens and positions."""
        found = self._prompt_id(prompt)
        return Prompt(self, found, self.layer(self._facts.layers[found][0], found).n_tokens)

    def layer(self, number: int, prompt: str | None = None) -> "Layer":
        """A layer of a prompt. TraceError where it is not recorded, saying which are."""
        found = self._prompt_id(prompt)
        if number not in self._facts.layers[found]:
            held = ", ".join(map(str, self._facts.layers[found]))
            fail(str(self.path), f"prompt {found} holds no layer {number}. It holds {held}")
        key = (found, int(number))
        if key not in self._layers:
            with self._root() as root:
                self._layers[key] = read_layer(root, *key)
        return Layer(self, found, self._layers[key])

    def _prompt_id(self, prompt: str | None) -> str:
        held = self._facts.layers
        if prompt is None:
            return next(iter(held))
        if prompt not in held:
            fail(str(self.path), f"holds no prompt {prompt}. It holds {', '.join(held)}")
        return prompt

    # ---- the open file

    @contextmanager
    def _root(self) -> Iterator[Node]:
        """Root of the open file, for a moment or, inside of `with`, for longer."""
        if self._held is not None:
            yield self._held.root
            return
        files = OpenFiles(self.path)
        try:
            yield files.root
        finally:
            files.close()

    def __enter__(self) -> "Trace":
        self._held = self._held or OpenFiles(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (str(self.path),)

    def __repr__(self) -> str:
        try:
            first = self.layer(self.layers()[0])
            prompts = "1 prompt" if len(self.prompts) == 1 else f"{len(self.prompts)} prompts"
            layers = " ".join(map(str, self.layers()))
        except TraceError as error:
            return f"<Trace {error}>"
        return (
            f"<Trace {self.path.name}: {self.model}, {prompts}, layers {layers} of {self.n_layers}, "
            f"{_heads(first)}, {first.n_tokens} tokens, {first.dtype}>"
        )


class Prompt:
    """One prompt of a trace and what followed it: T tokens, of which the first `n_prompt` are the prompt."""

    def __init__(self, trace: Trace, prompt: str, n_tokens: int):
        self.trace = trace
        self.id = prompt
        self.n_tokens = n_tokens

    @cached_property
    def _facts(self) -> PromptFacts:
        with self.trace._root() as root:
            return read_prompt(root, self.id, self.n_tokens)

    @property
    def layers(self) -> list[int]:
        """Numbers of its layers, ascending."""
        return self.trace.layers(self.id)

    def layer(self, number: int) -> "Layer":
        """One of its layers."""
        return self.trace.layer(number, self.id)

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt; T where it is not recorded."""
        return self._facts.n_prompt

    @property
    def n_generated(self) -> int:
        """Tokens that the model generated; T - n_prompt where it is not recorded."""
        return self._facts.n_generated

    @property
    def source(self) -> str:
        """Where the prompt is from, empty where it is not recorded."""
        return self._facts.source

    @cached_property
    def position_ids(self) -> np.ndarray:
        """int32 [T]: positions, 0..T-1 where they are not recorded."""
        found = self._integers("position_ids", 0, MOST_TOKENS)
        return _read_only(np.arange(self.n_tokens, dtype=np.int32)) if found is None else found

    @cached_property
    def token_ids(self) -> np.ndarray | None:
        """int32 [T]: ids of the tokens; None where they are not recorded."""
        return self._integers("tokens", -MOST_TOKENS - 1, MOST_TOKENS)

    @cached_property
    def token_classes(self) -> np.ndarray | None:
        """uint8 [T]: 0 word, 1 punctuation, 2 special; None where they are not recorded."""
        found = self._integers("token_class", 0, LAST_TOKEN_CLASS)
        return None if found is None else _read_only(found.astype(np.uint8))

    @cached_property
    def token_text(self) -> list[str] | None:
        """Text of each token on its own [T]; None where it is not recorded."""
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
            return _read_only(read_integers(array, low, high).astype(np.int32))

    @contextmanager
    def _group(self) -> Iterator[Node]:
        with self.trace._root() as root:
            yield root.at(f"prompts/{self.id}")

    def __reduce__(self) -> tuple[type, tuple[Trace, str, int]]:
        return type(self), (self.trace, self.id, self.n_tokens)

    def __repr__(self) -> str:
        return f"<Prompt {self.id} of {self.trace.path.name}: {self.n_tokens} tokens>"


class Layer:
    """One layer of a prompt. Arrays are read when they are first asked for, stay with the layer, and are
    read-only: copy what you mean to change.

    Query head h reads kv head h // group. q and k are as the attention call sees them.
    """

    def __init__(self, trace: Trace, prompt: str, facts: LayerFacts):
        self.trace = trace
        self._prompt = prompt
        self._facts = facts

    # ---- arrays

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
        return _read_only(stored.floats())

    def _stored(self, name: str, mapped: bool = False) -> Stored:
        if name not in TENSORS:
            fail(str(self.trace.path), f"a layer has the tensors {', '.join(TENSORS)}, not {name}")
        with self.trace._root() as root:
            tensor = open_layer_tensor(root, self._prompt, self.number, name)
            window = tensor.mapped() if mapped else None
            stored = window or tensor.read()
        _read_only(stored.array)
        return stored

    @cached_property
    def q_pos(self) -> np.ndarray:
        """int32 [Tq]: token of each query row, ascending; 0..Tq-1 where it is not recorded."""
        if not self._facts.has_q_pos:
            return _read_only(np.arange(self.n_query_rows, dtype=np.int32))
        with self._group() as group:
            array = open_array(group, "q_pos")
            positions = read_integers(array, 0, self.n_tokens - 1)
            falls = np.flatnonzero(np.diff(positions) <= 0)
            if falls.size:
                at = int(falls[0])
                fail(array.node.where, f"must ascend, but {positions[at + 1]} follows {positions[at]}")
        return _read_only(positions.astype(np.int32))

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
        return _read_only(logits)

    @contextmanager
    def _group(self) -> Iterator[Node]:
        with self.trace._root() as root:
            yield root.at(layer_path(self._prompt, self.number))

    def _where(self, name: str) -> str:
        return f"{self.trace.path}: /{layer_path(self._prompt, self.number)}/{name}"

    # ---- facts

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

    # ---- its prompt

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

    def __reduce__(self) -> tuple[Any, tuple[Trace, int, str]]:
        return Trace.layer, (self.trace, self.number, self._prompt)

    def __repr__(self) -> str:
        return (
            f"<Layer {self.number} of {self.trace.path.name}, prompt {self._prompt}: {_heads(self)}, "
            f"{self.n_tokens} tokens, {self.dtype}>"
        )


def _heads(layer: Layer) -> str:
    width = str(layer.head_dim)
    if layer.v_head_dim != layer.head_dim:
        width += f" (values {layer.v_head_dim})"
    return f"{layer.n_q_heads} query heads on {layer.n_kv_heads} kv heads of {width}"


def _is_empty(value: Any) -> bool:
    return isinstance(value, str) and not value


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _check_name(path: Path) -> None:
    part = Path(f"{path}.part")
    if path.suffix == ".part":
        fail(str(path), "is an unfinished dump (.part). Finish it with kvdump --resume, or dump it again")
    if not path.exists() and part.exists():
        fail(
            str(path), f"no such file, but there is an unfinished dump {part}. Finish it with kvdump --resume"
        )
