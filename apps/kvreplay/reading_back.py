"""kvreplay.read_back: keys and values after one round trip through a row format."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvbase.engine import _engine
from kvbase.errors import ConfigError, TraceError
from kvtrace.rope import rope_facts

from .arrays import as_floats
from .configuration import plain

NEVER = np.iinfo(np.int32).max  # in ReadBack.key_from and value_from: the row stays exact
UNIFORMS = ("signs", "rotation", "sketch")


@dataclass(frozen=True)
class ReadBack:
    """Result of `read_back`.

    keys [T, D], values [T, Dv], float32: the decoded numbers.
    key_from, value_from, int32 [T]: the first decode row after the prompt (from 0) that reads the decoded
        numbers; before it, rows read the exact ones. 2**31 - 1 if the token stays exact.
    """

    keys: np.ndarray
    values: np.ndarray
    key_from: np.ndarray
    value_from: np.ndarray


def read_back(
    row_format: str | dict[str, Any],
    keys: Any,
    values: Any,
    *,
    prompt: int | None = None,
    held: tuple[Sequence[int], Sequence[int]] | None = None,
    positions: Sequence[int] | None = None,
    rope: dict[str, Any] | str | None = None,
    latent: bool = False,
    layer: int = 0,
    n_layers: int | None = None,
    seed: int = 0,
    uniforms: dict[str, Sequence[float]] | None = None,
) -> ReadBack:
    """Quantise the keys and values of one kv head and read them back.

        layer = kv.open(kv.sample()).layer(15)
        back = kv.read_back("nvfp4", layer.k[0], layer.v[0], prompt=768)
        np.linalg.norm(back.keys - layer.k[0]) / np.linalg.norm(layer.k[0])     # relative error

    row_format: a name (`kvreplay.formats()`) or a dict with parameters, as in `replay`.
    keys [T, D], values [T, Dv]: floating point, from numpy, torch, jax or cupy.
    prompt: how many tokens arrive together as the prompt, 1 to T; default: all.
    held: which tokens the cache holds, as (tokens, begins) in the layout of `kept_flat` and `kept_off` of
        kept.h5. List i is tokens[begins[i] : begins[i + 1]]: list 0 after the prompt, one more after each
        later token. A single list: no token is evicted after the prompt. None: no token is ever evicted.
    positions: integers [T]; default: 0..T-1.
    rope: rotary embedding of the keys, as in `replay`; formats that quantise keys before rotation need it.
        None: the keys are not rotated.
    latent: rows of latent attention: a value is the last numbers of its key, and is stored with it.
    layer, n_layers: number of the layer from 0, and layers of the model, for `skip_layers`.
    seed: of the format's random numbers. uniforms: {"signs", "rotation" or "sketch": numbers in [0, 1)} to
        use instead of random ones.

    Returns a ReadBack. Raises ConfigError if the format cannot store these rows or an argument is wrong,
    TraceError if an array has another shape or type.
    """
    k, v = _rows(keys, "keys"), _rows(values, "values")
    if latent and v.shape[1] >= k.shape[1]:
        raise TraceError(
            f"keys is {list(k.shape)}, values {list(v.shape)}: with latent, values are a part of keys"
        )
    if len(k) != len(v) or not k.size or not v.size:
        raise TraceError(
            f"keys is {list(k.shape)}, values {list(v.shape)}: both need as many rows, at least one"
        )
    total = len(k)
    prompt = total if prompt is None else int(prompt)
    if not 0 < prompt <= total:
        raise ConfigError(f"prompt: {prompt} is not 1 to {total}, the number of rows")
    n_layers = layer + 1 if n_layers is None else n_layers
    if not 0 <= layer < n_layers:
        raise ConfigError(f"layer: {layer} is not 0 to {n_layers - 1}, below n_layers")
    tokens, begins = _held(held, prompt, total)
    places = np.arange(total) if positions is None else np.asarray(positions)
    if places.shape != (total,):
        raise TraceError(f"positions is {list(places.shape)}; it must be [{total}]")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed: {seed} is not 0 to {2**32 - 1}")
    given = uniforms or {}
    if strange := sorted(set(given) - set(UNIFORMS)):
        raise ConfigError(f"uniforms: {strange[0]} is unknown: known are signs, rotation and sketch")
    facts = {
        "keys": k,
        "values": v,
        "prompt": prompt,
        "held": tokens,
        "begins": begins,
        "positions": places.astype(np.int32),
        "rope": None if rope in (None, "none") else rope_facts(rope, k.shape[1], "rope"),
        "latent": latent,
        "layer": layer,
        "n_layers": n_layers,
        "seed": seed,
        **{name: np.asarray(given.get(name, ()), np.float64).reshape(-1) for name in UNIFORMS},
    }
    key_from, value_from, k, v = _engine.read_back(json.dumps(plain(row_format, "row_format")), facts)
    return ReadBack(k, v, key_from, value_from)


def _rows(given: Any, where: str) -> np.ndarray:
    array = as_floats(given, where)
    if array.ndim != 2:
        raise TraceError(f"{where} is {list(array.shape)}; it must be [tokens, dim], of one kv head")
    return np.ascontiguousarray(array)


def _held(held: Any, prompt: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    if held is None:
        return np.arange(prompt, dtype=np.int32), np.array([0, prompt], np.int64)
    tokens, begins = np.asarray(held[0]), np.asarray(held[1], np.int64)
    if begins.ndim != 1 or len(begins) not in (2, total - prompt + 2):
        raise ConfigError(
            f"held: {max(0, begins.size - 1)} lists; give one, or {total - prompt + 1}: one after the "
            f"prompt and one after each of the {total - prompt} later tokens"
        )
    if begins[0] != 0 or begins[-1] != tokens.size or (np.diff(begins) < 0).any():
        raise ConfigError("held: begins does not cut tokens into lists")
    filled = np.flatnonzero(np.diff(begins))
    starts, newest = begins[:-1][filled], prompt + filled - 1
    if tokens.size and (tokens.min() < 0 or (np.maximum.reduceat(tokens, starts) > newest).any()):
        raise ConfigError("held: a list holds a token of a later step")
    return tokens.astype(np.int32, copy=False), begins
