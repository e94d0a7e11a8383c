"""What a row format makes of keys and values."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _engine
from .arrays import as_floats
from .configuration import plain
from .errors import ConfigError, TraceError
from .trace_io.rope import rope_facts

NEVER = np.iinfo(np.int32).max  # of ReadBack.key_from and value_from
UNIFORMS = ("signs", "rotation", "sketch")


@dataclass(frozen=True)
class ReadBack:
    """`keys` [T, D], `values` [T, Dv] float32 as they are read once they are coded; `key_from`, `value_from`
    [T] int32: the first row behind the prompt (0-based) that reads them so, NEVER where they stay exact."""

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
    layer: int = 0,
    n_layers: int | None = None,
    seed: int = 0,
    uniforms: dict[str, Sequence[float]] | None = None,
) -> ReadBack:
    """Stores the rows of one kv head, keys [T, D] and values [T, Dv], as `row_format` (a name or a dict, as
    in `replay`) and reads them back.

        back = kv.read_back("nvfp4", k[0], v[0])
        np.linalg.norm(back.keys - k[0]) / np.linalg.norm(k[0])

    prompt: the first tokens, which come together (default all). held: (tokens, begins), list i =
    tokens[begins[i] : begins[i + 1]] of who is held after the prompt (i = 0) and after each later token, as
    `kept_flat` and `kept_off` of kept.h5; a single list: nobody leaves after the prompt; None: nobody leaves.
    rope: as `replay` takes it, for keys that are coded before rotation; None: the keys are not rotated.
    layer, n_layers: for `skip_layers`. uniforms: signs, rotation, sketch in [0, 1), in place of the seed's.
    Raises ConfigError where rows cannot be stored so, TraceError for arrays of other shapes.
    """
    k, v = _rows(keys, "keys"), _rows(values, "values")
    if len(k) != len(v) or not k.size or not v.size:
        raise TraceError(
            f"keys is {list(k.shape)}, values {list(v.shape)}: as many rows are needed, one at least"
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
        raise ConfigError(f"uniforms: {strange[0]}: signs, rotation and sketch are read")
    facts = {
        "keys": k,
        "values": v,
        "prompt": prompt,
        "held": tokens,
        "begins": begins,
        "positions": places.astype(np.int32),
        "rope": None if rope in (None, "none") else rope_facts(rope, k.shape[1], "rope"),
        "layer": layer,
        "n_layers": n_layers,
        "seed": seed,
        **{name: np.asarray(given.get(name, ()), np.float64).reshape(-1) for name in UNIFORMS},
    }
    try:
        key_from, value_from, k, v = _engine.read_back(json.dumps(plain(row_format, "row_format")), facts)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("command line: error: ")) from None
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
            f"held: {max(0, begins.size - 1)} lists, one or {total - prompt + 1} are needed: after the "
            f"prompt and after each of the {total - prompt} later tokens"
        )
    if begins[0] != 0 or begins[-1] != tokens.size or (np.diff(begins) < 0).any():
        raise ConfigError("held: begins does not cut tokens into lists")
    filled = np.flatnonzero(np.diff(begins))
    starts, newest = begins[:-1][filled], prompt + filled - 1
    if tokens.size and (tokens.min() < 0 or (np.maximum.reduceat(tokens, starts) > newest).any()):
        raise ConfigError("held: a list holds a token that has not come yet")
    return tokens.astype(np.int32, copy=False), begins
