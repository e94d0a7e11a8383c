"""Arrays as a trace file, as kvtrace's writer does: `<file>.part`, fsynced, renamed.

Each layer is checked, written and let go. Before the file gets its name it is read as any trace is, so what
the reader would refuse is never published.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kvbase import __version__
from kvbase.engine import _engine
from kvbase.errors import OutputError, TraceError
from kvbase.files import reason

from kvtrace.writer import SCHEMA, TraceFile

from . import rope as rope_json
from .bits import Stored, stored
from .given import (
    MOST_TOKENS,
    TENSORS,
    as_a,
    check_numbers,
    checked_rope,
    factor,
    fail,
    integers,
    is_printable,
    rope_as_text,
    stored_tensors,
    whole,
)
from .write_turns import write_branches, write_segments

MOST_LAYERS = 1000  # three digits
# What a layer to be written and one of a trace call by the same name.
FACTS = ("scaling", "sliding_window", "attention_chunk", "softcap", "q_prescaled", "source_dtype")


@dataclass(frozen=True)
class LayerArrays:
    """A layer to be written. Arrays: float32, float16 or bfloat16, of numpy (ml_dtypes), torch, jax or cupy.

    q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv], out [Hq, Tq, Dv] (the model's own attention output);
    scaling: factor of the logit (default 1/sqrt(D)); sliding_window, attention_chunk (tokens of a
    chunk in which rows attend) and softcap: 0 = none;
    q_prescaled: q carries the model's scaling already, so that scaling is 1;
    rope: this layer's, where it is not the trace's: as `rope_json`, or "none";
    sinks: [Hq], logit that joins the denominator only; q_pos: [Tq] tokens of the query rows, ascending, where
    there are fewer than T; source_dtype: what the model computed in (default: how k is stored).
    """

    q: Any
    k: Any
    v: Any
    scaling: float | None = None
    sliding_window: int = 0
    attention_chunk: int = 0
    softcap: float = 0.0
    q_prescaled: bool = False
    rope: Mapping[str, Any] | str | None = None
    sinks: Any = None
    q_pos: Any = None
    out: Any = None
    source_dtype: str = ""


@dataclass(frozen=True)
class PromptArrays:
    """A prompt to be written: its layers {number: (q, k, v), LayerArrays, a mapping, or a Layer}, and what
    `Trace.write` says of one prompt.

    segments: turns, each (first token, kind) or (first token, kind, name); kind is "context", "input" or
    "output". The prompt then ends before the first output. branches: continuations of the first
    `context_tokens` tokens (default: n_prompt), each a BranchArrays or a mapping.
    """

    layers: Mapping[int, Any]
    n_prompt: int | None = None
    n_generated: int | None = None
    token_ids: Any = None
    token_classes: Any = None
    token_text: Any = None
    position_ids: Any = None
    source: str = ""
    segments: Sequence[Any] | None = None
    branches: Sequence[Any] | None = None
    context_tokens: int | None = None


def write_trace(
    path: Path,
    prompts: Mapping[str, Any],
    model: dict[str, Any],
    rope: Mapping[str, Any] | str | None,
    compress: bool = False,
) -> None:
    """Write prompts {id: PromptArrays or a mapping with its names} to `path`.

    `model`: the root's attributes, None ones left out. `rope`: rotary embedding of every layer that has none
    of its own. Raises TraceError and OutputError.
    """
    if not prompts:
        fail(str(path), "there is no prompt to be written")
    try:
        writing = _Writing(path, model, rope, compress)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{path}: cannot write: {reason(error)}") from error
    try:
        for prompt, given in prompts.items():
            writing.prompt(prompt, as_a(PromptArrays, given, f"{path}: prompt {prompt}"))
        writing.publish()
    except BaseException as error:
        writing.drop()
        if isinstance(error, OSError) and not isinstance(error, OutputError):
            raise OutputError(f"{path}: cannot write: {reason(error)}") from error
        raise


class _Writing:
    """A file on its way."""

    def __init__(self, path: Path, model: dict[str, Any], rope: Any, compress: bool):
        self.path = path
        self.model = model
        self.everywhere = rope
        self.file = TraceFile(path, compress)

    def prompt(self, prompt: str, given: PromptArrays) -> None:
        where = f"{self.path}: prompt {prompt}"
        if not prompt or "/" in prompt or prompt in (".", "..") or not is_printable(prompt):
            fail(where, "an id is a name without slashes and control characters, e.g. p0")
        if not given.layers:
            fail(where, "has no layers")
        n_tokens = self._layers(prompt, given.layers, where)
        group = f"prompts/{prompt}"
        for name, values, low, high in (
            ("tokens", given.token_ids, -MOST_TOKENS - 1, MOST_TOKENS),
            ("position_ids", given.position_ids, 0, MOST_TOKENS),
            ("token_class", given.token_classes, 0, 2),
        ):
            if values is not None:
                numbers = integers(values, n_tokens, low, high, f"{where}: {name}")
                self.file.add(
                    f"{group}/{name}", numbers.astype(np.uint8 if name == "token_class" else np.int32)
                )
        if given.token_text is not None:
            self._texts(group, given.token_text, n_tokens, where)
        lengths = self._lengths(given, n_tokens, where)
        if given.segments:
            lengths |= write_segments(self.file, group, given.segments, n_tokens, where)
        self.file.set_attributes(group, lengths)
        if given.branches:
            context = lengths["n_prompt"] if given.context_tokens is None else given.context_tokens
            context = whole(context, 1, n_tokens, where, "context_tokens")
            first = context if given.position_ids is None else int(given.position_ids[context - 1]) + 1
            write_branches(self.file, group, given.branches, (context, first), where)

    def _texts(self, group: str, texts: Any, n_tokens: int, where: str) -> None:
        texts = list(texts)
        if len(texts) != n_tokens or not all(isinstance(text, str) for text in texts):
            fail(where, f"token_text must be {n_tokens} strings, one for each token")
        self.file.add_texts(f"{group}/token_text", texts)

    def _lengths(self, given: PromptArrays, n_tokens: int, where: str) -> dict[str, Any]:
        n_prompt = n_tokens if given.n_prompt is None else given.n_prompt
        n_prompt = whole(n_prompt, 1, n_tokens, where, "n_prompt")
        n_generated = n_tokens - n_prompt if given.n_generated is None else given.n_generated
        return {
            "n_prompt": n_prompt,
            "n_generated": whole(n_generated, 0, MOST_TOKENS, where, "n_generated"),
            "source": given.source or None,
        }

    # ---- layers

    def _layers(self, prompt: str, layers: Mapping[int, Any], where: str) -> int:
        """Writes all layers of a prompt; their number of tokens."""
        tokens: dict[int, int] = {}
        for number in layers:
            whole(number, 0, MOST_LAYERS - 1, where, "the number of a layer")
        for number in sorted(layers):
            here = f"{where}, layer {number}"
            shapes = self._layer(prompt, int(number), as_layer_arrays(layers[number], here), here)
            tokens[number] = shapes.tokens
            first = next(iter(tokens))
            if shapes.tokens != tokens[first]:
                fail(here, f"k has {shapes.tokens} tokens, but layer {first} has {tokens[first]}")
        return tokens[first]

    def _layer(self, prompt: str, number: int, given: LayerArrays, where: str) -> "_engine.LayerFacts":
        tensors = stored_tensors(given, where)
        shapes = _engine.layer_shapes(where, *(tensors[name].shape for name in "qkv"))
        out_shape = (shapes.q_heads, shapes.query_rows, shapes.v_head_dim)
        if "out" in tensors and tensors["out"].shape != out_shape:
            fail(f"{where}: out", f"has shape {list(tensors['out'].shape)}, it must be {list(out_shape)}")
        for name, tensor in tensors.items():
            check_numbers(tensor, name, where)
        extras = {"q_pos": _q_pos(given, shapes, where), "sinks": _sinks(given, shapes, where)}
        attributes = self._attributes(given, shapes, where)
        attributes["source_dtype"] = given.source_dtype or tensors["k"].type.name
        group = f"prompts/{prompt}/layers/{number:03d}"
        for name, tensor in tensors.items():
            self.file.add(f"{group}/{name}", tensor.array, tensor.type.short)
        for name, values in extras.items():
            if values is not None:
                self.file.add(f"{group}/{name}", values)
        self.file.set_attributes(group, attributes)
        return shapes

    def _attributes(self, given: LayerArrays, shapes: "_engine.LayerFacts", where: str) -> dict[str, Any]:
        """Attributes of a layer's group, None ones to be left out."""
        scaling = 1 / math.sqrt(shapes.head_dim) if given.scaling is None else given.scaling
        softcap = given.softcap or 0.0
        window = whole(given.sliding_window or 0, 0, MOST_TOKENS, where, "sliding_window")
        chunk = whole(given.attention_chunk or 0, 0, MOST_TOKENS, where, "attention_chunk")
        if window and chunk:
            raise TraceError(
                f"{where}: sliding_window {window} and attention_chunk {chunk} exclude each other"
            )
        own = given.rope
        kind = checked_rope(own, shapes.head_dim, where)
        everywhere = checked_rope(self.everywhere, shapes.head_dim, f"{self.path}")
        none = kind == rope_json.NONE or (own is None and everywhere == rope_json.NONE)
        return {
            "scaling": factor(scaling, where, "scaling"),
            "sliding_window": window,
            "attention_chunk": chunk or None,
            "softcap": factor(softcap, where, "softcap") if softcap else 0.0,
            "q_prescaled": 1 if given.q_prescaled else None,
            "rope": rope_json.NONE if none else None,
            "rope_json": kind if own is not None and not none and kind != everywhere else None,
        }

    # ---- the end

    def publish(self) -> None:
        """Read it as any trace is read, name it by its content, and make it visible."""
        everywhere = rope_as_text(self.everywhere)
        root = self.model | {
            "rope_json": everywhere if everywhere != rope_json.NONE else None,
            "created_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "dumper": f"kvreplay {__version__}",
        }
        root = {name: value for name, value in root.items() if value is not None}
        self.file.set_attributes("/", {"kvreplay_schema": SCHEMA, **root})
        self.file.file.flush()
        self.file.check_disk()
        self.file.publish(root, identity=_engine.written_trace_id(self.file.part))

    def drop(self) -> None:
        """Leave nothing behind."""
        self.file.abandon()
        self.file.part.unlink(missing_ok=True)


# ---- what was given


def as_layer_arrays(given: Any, where: str) -> LayerArrays:
    """(q, k, v), a mapping, LayerArrays, or a Layer of a trace."""
    if hasattr(given, "raw"):
        return _of_trace(given)
    if isinstance(given, tuple | list):
        if len(given) != 3:
            fail(where, f"is a tuple of {len(given)}, it must be (q, k, v)")
        return LayerArrays(*given)
    return as_a(LayerArrays, given, where)


def _of_trace(layer: Any) -> LayerArrays:
    """A Layer of a trace, its bits unchanged."""
    there = {name: getattr(layer, name) for name in FACTS}
    tensors = {name: Stored.named(*layer.raw(name)) for name in TENSORS if name != "out" or layer.has_out}
    strided = layer.n_query_rows != layer.n_tokens
    none = layer.rope is None and layer.rope_recorded
    return LayerArrays(
        **tensors,
        **there,
        rope=rope_json.NONE if none else layer.rope,
        sinks=layer.sinks,
        q_pos=layer.q_pos if strided else None,
    )


def _q_pos(given: LayerArrays, shapes: "_engine.LayerFacts", where: str) -> np.ndarray | None:
    if given.q_pos is None:
        if shapes.query_rows != shapes.tokens:
            fail(
                f"{where}: q",
                f"has {shapes.query_rows} rows for {shapes.tokens} tokens: say with q_pos which tokens "
                "they are of",
            )
        return None
    positions = integers(given.q_pos, shapes.query_rows, 0, shapes.tokens - 1, f"{where}: q_pos")
    falls = np.flatnonzero(np.diff(positions) <= 0)
    if falls.size:
        at = int(falls[0])
        fail(f"{where}: q_pos", f"must ascend, but {positions[at + 1]} follows {positions[at]}")
    return positions.astype(np.int32)


def _sinks(given: LayerArrays, shapes: "_engine.LayerFacts", where: str) -> np.ndarray | None:
    if given.sinks is None:
        return None
    try:
        logits = stored(given.sinks, "sinks").floats().astype(np.float32)
    except TypeError as error:
        fail(where, str(error))
    if logits.shape != (shapes.q_heads,) or not np.isfinite(logits).all():
        fail(f"{where}: sinks", f"must be {shapes.q_heads} finite numbers, one for each query head")
    return logits
