"""Rotary embedding as `rope_json` tells it (docs/formats.md)."""

import json
import math
from typing import Any, NoReturn

from .walk import fail

LAYOUTS = ("half_split", "interleaved")
NONE = "none"


def parse_rope(text: str, where: str, head_dim: int, rotary_dims: int | None) -> dict[str, Any] | None:
    """`rope_json` with every key filled in: `type`, `theta` (0: not told), `inv_freq` (a list, one number for
    each rotated pair), `attention_factor`, `layout`, `rotary_dims`. None where it says that there is none.

    `rotary_dims` is the layer's attribute, if there is one. TraceError at `where` on anything else.
    """
    try:
        given = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):  # the latter of a thousand brackets
        given = None
    if not isinstance(given, dict):
        fail(where, "is not a JSON object")
    kind = _text(given, "type", "default", where)
    if kind == NONE:
        return None
    theta = _number(given, "theta", 0.0, where)
    if theta < 0:
        fail(where, f'"theta" is {theta:g}, it must be above 0')
    factor = _number(given, "attention_factor", 1.0, where)
    if factor <= 0:
        fail(where, f'"attention_factor" is {factor:g}, it must be above 0')
    layout = _text(given, "layout", LAYOUTS[0], where)
    if layout not in LAYOUTS:
        fail(where, f'"layout" is "{layout}", it must be half_split or interleaved')
    dims = _rotary_dims(given, head_dim, rotary_dims, where)
    return {
        "type": kind,
        "theta": theta,
        "inv_freq": _frequencies(given, kind, theta, dims, where),
        "attention_factor": factor,
        "layout": layout,
        "rotary_dims": dims,
    }


def rope_facts(given: Any, head_dim: int, where: str) -> dict[str, Any] | None:
    """Facts of a rotary embedding, from a dict with these keys or from `rope_json` itself."""
    return parse_rope(given if isinstance(given, str) else json.dumps(given), where, head_dim, None)


def _no_number(word: str) -> NoReturn:
    # Python reads NaN and Infinity, which are no JSON.
    raise ValueError(word)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(given: dict[str, Any], key: str, missing: float, where: str) -> float:
    value = given.get(key)
    if value is None:
        return missing
    if not _is_number(value):
        fail(where, f'"{key}" must be a finite number')
    return float(value)


def _text(given: dict[str, Any], key: str, missing: str, where: str) -> str:
    value = given.get(key)
    if value is None:
        return missing
    if not isinstance(value, str):
        fail(where, f'"{key}" must be a string')
    return value


def _rotary_dims(given: dict[str, Any], head_dim: int, attribute: int | None, where: str) -> int:
    dims = _number(given, "rotary_dims", float(head_dim if attribute is None else attribute), where)
    if not 2 <= dims <= head_dim or dims % 2:
        fail(where, f'"rotary_dims" is {dims:g}, it must be even and from 2 to head_dim {head_dim}')
    if attribute is not None and attribute != dims:
        fail(where, f'"rotary_dims" is {dims:g}, but the layer\'s attribute rotary_dims is {attribute}')
    return int(dims)


def _frequencies(given: dict[str, Any], kind: str, theta: float, dims: int, where: str) -> list[float]:
    found = given.get("inv_freq")
    if found is None:
        if kind != "default" or theta <= 0:
            fail(where, f'needs "inv_freq", or "theta" above 0 with type "default" (type is "{kind}")')
        # Not numpy's power, whose last bits may be others than those of the engine.
        return [math.pow(theta, -2.0 * i / dims) for i in range(dims // 2)]
    if not isinstance(found, list) or len(found) != dims // 2:
        fail(
            where,
            f'"inv_freq" must be a list of {dims // 2} numbers, one per pair of the {dims} rotated '
            "dimensions",
        )
    for i, value in enumerate(found):
        if not _is_number(value) or value < 0:
            fail(where, f'"inv_freq"[{i}] must be a finite number, 0 or more')
    return [float(value) for value in found]
