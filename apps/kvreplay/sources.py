"""Inputs of a replay in the form that the engine reads: a caller's arrays, or the names of trace files."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from kvanalysis.data.arrays import Recorded
from kvbase.errors import ConfigError, TraceError
from kvbase.files import reason
from kvtrace.bits import Stored
from kvtrace.rope import rope_facts

from .arrays import OnDevice, described
from .hosting import printable
from .layer_inputs import LayerInputs
from .trace import Layer, Trace

ARRAYS = "arrays"  # name of a trace that consists of arrays in memory
ONLY_PROMPT = "p0"  # its prompt
MOST_LAYERS = 1 << 16
MOST = (65535, 1 << 24, 65536)  # heads, rows and width of a tensor: the engine refuses larger ones
FINGERPRINT_HEADS, FINGERPRINT_ROWS = 8, 16  # heads hashed per tensor, rows hashed per head
FACTS = (
    "scaling",
    "sliding_window",
    "attention_chunk",
    "softcap",
    "q_prescaled",
    "rope",
    "sinks",
    "q_pos",
)


class Sources:
    """The inputs of kvreplay.replay: arrays of one or several layers, or trace files. Raises ConfigError."""

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        layers: Any,
        position_ids: Any,
        model: str,
        n_layers: int | None,
        facts: Mapping[str, Any],
    ):
        self.traces: list[Trace] = []
        self.layers: Mapping[int, Any] = {}
        self.position_ids, self.model, self.n_layers, self.facts = position_ids, model, n_layers, facts
        self.wanted: list[int] | None = None
        self.prompt_of_layers: str | None = None
        if k is None and v is None and _names_traces(q):
            self.traces = [_trace(t) for t in (q if isinstance(q, list | tuple) else [q])]
            _expect_no_repetition([trace.path for trace in self.traces])
            self.wanted = _numbers(layers)
            self._expect_no_facts()
        elif q is not None and _names_traces(q):
            raise ConfigError("q names a trace, which holds k and v: leave them out")
        elif q is not None and k is not None and v is not None:
            if layers is not None:
                raise ConfigError("give either q, k, v of one layer, or layers={number: (q, k, v)}")
            self.layers = {0: (q, k, v)}
        elif isinstance(layers, Mapping) and q is None and k is None and v is None:
            self.layers = layers
            self._use_trace_of_layers()
        else:
            missing = " and ".join(name for name, given in (("k", k), ("v", v)) if given is None)
            what = (
                f"{missing} missing" if q is not None and layers is None and missing else "nothing to replay"
            )
            raise ConfigError(
                f"{what}: give q, k, v, or layers={{number: (q, k, v)}}, or the path of a trace"
            )

    @classmethod
    def of_trace(cls, path: Path) -> "Sources":
        """The input that is one trace file."""
        return cls(path, None, None, None, None, ARRAYS, None, {})

    def _expect_no_facts(self) -> None:
        """ConfigError if an argument gives a fact that the trace itself records."""
        given = {"position_ids": self.position_ids, "n_layers": self.n_layers, **self.facts}
        said = [name for name, value in given.items() if not _is_default(name, value)]
        if said:
            raise ConfigError(f"{said[0]} describes arrays; a trace records it: leave it out")

    def require_prefill(self) -> None:
        """ConfigError if the inputs are arrays, for which `prefill` is required."""
        if self.layers:
            raise ConfigError("prefill is missing: say how many tokens are the prompt; later ones are scored")

    def _use_trace_of_layers(self) -> None:
        """Replaces Layers of one prompt of one trace by that trace, which records the facts of the prompt."""
        given = [layer for layer in self.layers.values() if isinstance(layer, Layer)]
        if not given:
            return
        same = {(layer.trace.path, layer.prompt.id) for layer in given}
        numbered = all(isinstance(v, Layer) and n == v.number for n, v in self.layers.items())
        if len(same) > 1 or not numbered:
            raise ConfigError(
                "layers mixes layers of a trace with others, or changes their numbers: give their arrays, "
                "{number: (layer.q, layer.k, layer.v)}"
            )
        self._expect_no_facts()
        self.traces, self.wanted = [given[0].trace], sorted(self.layers)
        self.prompt_of_layers = given[0].prompt.id
        self.layers = {}

    def selected_prompts(self, prompts: Any) -> Any:
        """Ids of the prompts to replay, or None for all; Layers of a trace select their own prompt."""
        return prompts if prompts is not None or self.prompt_of_layers is None else [self.prompt_of_layers]

    def selected_layers(self) -> list[int] | None:
        """Numbers of the traces' layers to replay; None: all."""
        return self.wanted

    def for_engine(self) -> "list[bytes] | dict[str, Any]":
        """The names of the trace files, or a description of the arrays."""
        if self.traces:
            return [os.fsencode(trace.path) for trace in self.traces]
        return of_arrays(self.layers, self.facts, self.position_ids, self.model, self.n_layers)

    def layer_inputs(self, prompt: int, layer: int) -> LayerInputs:
        """The tensors of a layer, of the prompt with this rank. ValueError if they do not hold all of its
        rows."""
        if not self.traces:
            given = self.layers[layer]
            named = given if isinstance(given, Mapping) else dict(zip("qkv", given, strict=True))
            return LayerInputs(*(named[name] for name in "qkv"))
        if len(self.traces) > 1:
            raise ValueError("a method that scores whole layers is replayed on one trace at a time")
        trace = self.traces[0]
        recorded = trace.layer(layer, trace.prompt_of_rank(prompt))
        if recorded.latent or recorded.n_query_rows != recorded.n_tokens:
            raise ValueError("it needs every query of the layer, and keys and values of its own")
        return LayerInputs(*(Stored.named(*recorded.raw(name)) for name in "qkv"))

    def recorded(self, row: Mapping[str, Any]) -> "Recorded | Replayed":
        """The arrays behind a row of results."""
        if self.traces:
            paths = (trace.path for trace in self.traces)
            return Recorded(next(p for p in paths if Trace(p).trace_id == row["trace_id"]))
        return Replayed(self.for_engine())


def _is_default(name: str, value: Any) -> bool:
    if value is None or (isinstance(value, bool) and not value):
        return True
    if name not in ("sliding_window", "attention_chunk", "softcap"):
        return False
    return isinstance(value, int | float) and value == 0


def _trace(given: Any) -> Trace:
    if isinstance(given, Trace):
        return given
    try:
        if b"\0" in os.fsencode(given):  # the engine would open the file that is named before it
            raise ValueError("its name holds a zero byte")
        return Trace(given)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{printable(str(given))[:200]} cannot be opened: {reason(error)}") from error


def _expect_no_repetition(paths: list[Path]) -> None:
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{printable(str(path))} is listed twice")


def _names_traces(given: Any) -> bool:
    several = given if isinstance(given, list | tuple) and given else [given]
    return all(isinstance(item, str | os.PathLike | Trace) for item in several)


def _numbers(layers: Any) -> list[int] | None:
    if layers is None:
        return None
    if _is_whole(layers):
        return [int(layers)]
    if isinstance(layers, str | bytes | Mapping) or not isinstance(layers, Iterable):
        raise ConfigError(f"layers of a trace are numbers: [0, 7], not {type(layers).__name__}")
    numbers = list(layers)
    for number in numbers:
        if not _is_whole(number):
            raise ConfigError(f"layers of a trace are numbers: [0, 7], not {number!r}")
    return [int(number) for number in numbers]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def of_arrays(
    layers: Mapping[int, Any], facts: Mapping[str, Any], position_ids: Any, model: str, n_layers: int | None
) -> dict[str, Any]:
    """Description of arrays, for the engine.

    layers: {number: (q, k, v)}, or {number: dict} with q, k, v and facts of that layer, which override
    `facts`. Raises ConfigError and TraceError.
    """
    if not layers:
        raise ConfigError("layers is empty: give {number: (q, k, v)}")
    numbers = sorted(layers, key=lambda n: n if _is_whole(n) else -1)
    if not all(_is_whole(n) and 0 <= n < MOST_LAYERS for n in numbers):
        raise ConfigError(f"layers has the keys {numbers}: they must be numbers of layers, from 0")
    if n_layers is None:
        n_layers = int(numbers[-1]) + 1
    if not _is_whole(n_layers) or not numbers[-1] < n_layers <= MOST_LAYERS:
        raise ConfigError(f"n_layers is {n_layers!r}: it must be a whole number above {numbers[-1]}")
    if not isinstance(model, str):
        raise ConfigError(f"model is {model!r}: it must be text")
    found = [_described_layer(int(n), layers[n], facts, alone=len(layers) == 1) for n in numbers]
    tokens = int(found[0]["k"]["data"].shape[1])
    return {
        "label": ARRAYS,
        "trace_id": f"{ARRAYS}-{fingerprint(found)}",
        "model": printable(model),
        "n_layers": int(n_layers),
        "prompt": ONLY_PROMPT,
        "tokens": tokens,
        "position_ids": vector_of(position_ids, np.int32, "position_ids", low=0),
        "layers": found,
    }


def fingerprint(layers: list[dict[str, Any]]) -> str:
    """12 hex digits that identify arrays: a hash of their shapes, types and some of their rows."""
    total = hashlib.sha256()
    for layer in layers:
        for name in "qkv":
            data, dtype = layer[name]["data"], layer[name]["dtype"]
            total.update(f"{layer['layer']} {name} {dtype} {list(data.shape)}".encode())
            if all(0 < extent <= most for extent, most in zip(data.shape, MOST, strict=True)):
                for head in range(0, data.shape[0], max(1, data.shape[0] // FINGERPRINT_HEADS)):
                    total.update(_some_rows(data, head).tobytes())
    return total.hexdigest()[:12]


def _some_rows(data: Any, head: int) -> np.ndarray:
    tokens = data.shape[1]
    if isinstance(data, OnDevice):
        return data.rows(head, 0, min(tokens, FINGERPRINT_ROWS))
    return np.ascontiguousarray(data[head, :: max(1, tokens // FINGERPRINT_ROWS)])


def _described_layer(number: int, given: Any, facts: Mapping[str, Any], alone: bool) -> dict[str, Any]:
    if isinstance(given, Mapping):
        named = dict(given)
    elif isinstance(given, tuple | list) and len(given) == 3:
        named = dict(zip("qkv", given, strict=True))
    else:
        raise ConfigError(f"layer {number} must be (q, k, v), or a dict with q, k, v and facts of the layer")
    unknown = sorted(set(named) - {"q", "k", "v", *FACTS})
    missing = [name for name in "qkv" if name not in named]
    if unknown or missing:
        what = f"has no {missing[0]}" if missing else f"has {unknown[0]!r}"
        raise ConfigError(f"layer {number} {what}: it takes q, k, v, {', '.join(FACTS)}")
    said = {**facts, **{name: value for name, value in named.items() if name in FACTS}}
    where = "" if alone else f"layer {number}: "
    tensors = {name: described(named[name], where + name) for name in "qkv"}
    _expect_heads_first(tensors, where)
    width = int(tensors["k"]["data"].shape[2])
    return {"layer": number, **tensors, **_facts(said, width, where)}


def _expect_heads_first(tensors: Mapping[str, Any], where: str) -> None:
    """TraceError if arrays look like [tokens, heads, dim]."""
    (q_first, q_second, _), (k_first, k_second, _) = (tuple(tensors[name]["data"].shape) for name in "qk")
    if q_first == k_first > q_second > k_second and q_second % k_second == 0:
        raise TraceError(
            f"{where}q has {q_first} heads of {q_second} tokens, k {k_first} of {k_second}: they look like "
            "[tokens, heads, dim]. Give heads first: q.transpose(1, 0, 2), in torch q.transpose(0, 1)"
        )


def _facts(said: Mapping[str, Any], width: int, where: str) -> dict[str, Any]:
    scaling, softcap = said.get("scaling"), said.get("softcap")
    found = {
        "scaling": max(width, 1) ** -0.5
        if scaling is None
        else _number(scaling, f"{where}scaling", 1e-9, 1e9),
        "sliding_window": _whole(said.get("sliding_window"), f"{where}sliding_window"),
        "attention_chunk": _whole(said.get("attention_chunk"), f"{where}attention_chunk"),
        "softcap": _number(0 if softcap is None else softcap, f"{where}softcap", 0, 1e9),
        "q_prescaled": _flag(said.get("q_prescaled"), f"{where}q_prescaled"),
        "sinks": vector_of(said.get("sinks"), np.float32, f"{where}sinks"),
        "q_pos": vector_of(said.get("q_pos"), np.int32, f"{where}q_pos"),
    }
    if found["sliding_window"] and found["attention_chunk"]:
        raise ConfigError(f"{where}sliding_window and attention_chunk exclude each other: give one of them")
    rope = said.get("rope")
    found["rope"] = (
        None
        if rope is None or (isinstance(rope, str) and rope == "none")
        else rope_facts(rope, width, f"{where}rope")
    )
    found["rope_recorded"] = rope is not None
    return found


def _whole(value: Any, where: str) -> int:
    number = _number(0 if value is None else value, where, 0, 2**30)
    if not number.is_integer():
        raise ConfigError(f"{where} is {value!r}: it must be a whole number")
    return int(number)


def _flag(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{where} is {value!r}: it must be True or False")
    return bool(value)


def _number(value: Any, where: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise ConfigError(f"{where} is too large: it must be from {low:g} to {high:g}") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{where} is {value!r}: it must be a number") from None
    if not low <= number <= high:
        raise ConfigError(f"{where} is {value!r}: it must be from {low:g} to {high:g}")
    return number


def vector_of(values: Any, dtype: type, where: str, low: int = -(2**31)) -> np.ndarray | None:
    """A list of numbers as the engine reads it: int32, at least `low`, or float32. None stays None.
    TraceError for anything else."""
    if values is None:
        return None
    if type(values).__module__.partition(".")[0] == "torch":
        values = values.detach().cpu().float() if dtype is np.float32 else values.detach().cpu()
    try:
        array = np.asarray(values)
        if array.dtype.kind in "cUSV":
            raise TypeError(f"it holds {array.dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            vector = np.ascontiguousarray(array, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{where} is not a list of numbers: {error}") from error
    if vector.ndim != 1:
        raise TraceError(f"{where} is {list(vector.shape)}; it must be a list of numbers")
    if (dtype is np.int32 and array.dtype.kind not in "iu") or not np.isfinite(vector.astype(float)).all():
        kind = "whole numbers" if dtype is np.int32 else "finite numbers"
        raise TraceError(f"{where} must hold {kind}")
    if dtype is np.int32 and array.size and not low <= int(array.min()) <= int(array.max()) < 2**31:
        raise TraceError(
            f"{where} holds {array.min()} to {array.max()}: it must be from {low} to {2**31 - 1}"
        )
    return vector


class Replayed:
    """Arrays and facts of replayed arrays, with the interface of kvanalysis.data.arrays.Recorded: figures of
    one layer read them. `found`: a description of the arrays."""

    def __init__(self, found: Mapping[str, Any]):
        self._layers = {layer["layer"]: layer for layer in found["layers"]}

    def tensor(self, _prompt: str, layer: int, name: str) -> np.ndarray:
        """float64: q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv] or sinks [Hq]. KeyError if the layer has
        none."""
        given = self._layers[layer][name]
        if given is None:
            raise KeyError(name)
        if name not in ("q", "k", "v"):
            return np.asarray(given, np.float64)
        data = given["data"]
        if not isinstance(data, np.ndarray):
            data = np.stack([data.rows(head, 0, data.shape[1]) for head in range(data.shape[0])])
        return Stored.named(data, given["dtype"]).floats().astype(np.float64)

    def attribute(self, name: str, _prompt: str, layer: int) -> Any:
        """A fact of a layer."""
        return self._layers[layer][name]
