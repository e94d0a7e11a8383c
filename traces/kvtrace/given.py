"""What was given to be written as a trace: its types and ranges, and the messages about them."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, NoReturn

import numpy as np
from kvbase.errors import TraceError

from . import rope as rope_json
from .bits import Stored, stored

TENSORS = ("q", "k", "v", "out")
MOST_TOKENS = 2**31 - 1  # token indices are int32
# Factors beyond these bounds overflow or vanish in single precision; no model has them.
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-12, 1e12


def fail(where: str, what: str) -> NoReturn:
    """Raise TraceError."""
    raise TraceError(f"{where}: {what}")


def is_printable(text: str) -> bool:
    """Whether a name may end on a terminal: UTF-8 without control characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return all(ord(character) >= 0x20 and character != "\x7f" for character in text)


def as_a(kind: type, given: Any, where: str) -> Any:
    """A dataclass, or a mapping with its names."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        fail(where, f"is a {type(given).__name__}, it must be a {kind.__name__} or a mapping")
    names = [field.name for field in fields(kind)]
    unknown = [str(name) for name in given if name not in names]
    if unknown:
        fail(where, f"{', '.join(unknown)} means nothing here. Known are {', '.join(names)}")
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in given]
    if missing:
        fail(where, f"{', '.join(missing)} missing")
    return kind(**given)


def stored_tensors(given: Any, where: str, names: tuple[str, ...] = TENSORS) -> dict[str, Stored]:
    """{name: stored numbers}; TraceError where one is no array of floats."""
    tensors = {}
    for name in names:
        array = getattr(given, name)
        if array is None and name == "out":
            continue
        try:
            tensors[name] = stored(array, name)
        except (TypeError, ValueError, AttributeError) as error:
            fail(where, str(error))
    return tensors


def check_numbers(tensor: Stored, name: str, where: str) -> None:
    wrong = tensor.first_unusable()
    if wrong is not None:
        row = "query" if name in ("q", "out") else "token"
        head, token, coordinate = wrong
        fail(
            f"{where}: {name}",
            f"{tensor.name_at(wrong)} at head {head}, {row} {token}, coordinate {coordinate}. Numbers must "
            "be finite and below 2^40",
        )


def whole(value: Any, low: int, high: int, where: str, name: str) -> int:
    """A whole number from `low` to `high`, of Python or numpy; TraceError on anything else."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        fail(where, f"{name} is {value!r}, it must be a whole number from {low} to {high}")
    return int(value)


def factor(value: Any, where: str, name: str) -> float:
    """A number that single precision can hold; TraceError on anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        fail(where, f"{name} is {value!r}, it must be a number")
    if not SMALLEST_FACTOR <= number <= LARGEST_FACTOR:
        fail(where, f"{name} is {number:g}, it must be from {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g}")
    return number


def integers(values: Any, length: int, low: int, high: int, where: str) -> np.ndarray:
    """int64 [length] of anything that numpy reads as integers."""
    try:
        numbers = np.asarray(values.cpu() if hasattr(values, "cpu") else values)
    except (TypeError, ValueError) as error:
        fail(where, f"is no array ({error})")
    if numbers.shape != (length,) or numbers.dtype.kind not in "iu":
        fail(
            where,
            f"has shape {list(numbers.shape)} and type {numbers.dtype}, it must be {length} integers",
        )
    wrong = np.flatnonzero((numbers < low) | (numbers > high))
    if wrong.size:
        fail(where, f"holds {numbers[wrong[0]]} at {wrong[0]}, it must be from {low} to {high}")
    return numbers.astype(np.int64)


def rope_as_text(given: Mapping[str, Any] | str | None) -> str | None:
    """As the file says it: a JSON object, "none", or None for nothing."""
    if given is None or given == rope_json.NONE:
        return given
    return json.dumps(dict(given), sort_keys=True, separators=(",", ":"), default=plain)


def checked_rope(given: Any, head_dim: int, where: str) -> str | None:
    """The same, checked; "none" also where the object says so."""
    if given is not None and given != rope_json.NONE and not isinstance(given, Mapping):
        fail(where, f'rope is {given!r}, it must be a mapping such as {{"theta": 10000}}, or "none"')
    try:
        text = rope_as_text(given)
    except TypeError as error:
        fail(where, f"rope holds what JSON does not know ({error})")
    if text is None or text == rope_json.NONE:
        return text
    found = rope_json.rope_facts(text, head_dim, f"{where}: rope")
    return text if found is not None else rope_json.NONE


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")
