"""Identity of a method in Python: a hash of its source text and of the values that it was made with.

Keys of cells contain it: a resumed run replays the cells of a method whose text has changed. Functions that
the method calls elsewhere do not count.
"""

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_DEPTH = 8  # levels of nested values that are hashed


def identity_of(thing: Any, facts: Mapping[str, Any], base: type) -> str:
    """16 hex digits that identify a function, a callable, a class derived from `base` or an instance of one,
    together with its `facts`."""
    said = json.dumps({name: facts[name] for name in sorted(facts) if name not in ("title", "source")})
    text = printable(_content(thing, base, MAX_DEPTH) + said)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def printable(text: str) -> str:
    """Text that UTF-8 can encode: other characters are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _content(value: Any, base: type, depth: int) -> str:
    if depth == 0:
        return "..."

    def inside(values: Any) -> str:
        return "[" + ",".join(_content(v, base, depth - 1) for v in values) + "]"

    if isinstance(value, functools.partial):
        return inside([value.func, value.args, value.keywords])
    if inspect.ismethod(value):
        return inside([value.__func__, value.__self__])
    if inspect.isfunction(value):
        return _source(value) + inside(_enclosed(value))
    if isinstance(value, type):
        return _class(value, base, inside)
    if isinstance(value, Mapping):
        return inside([pair for item in sorted(value.items(), key=repr) for pair in item])
    if isinstance(value, list | tuple):
        return inside(value)
    if isinstance(value, set | frozenset):
        return inside(sorted(value, key=repr))
    return _leaf(value, inside)


def _leaf(value: Any, inside: Any) -> str:
    array = (
        value.detach().cpu().numpy()
        if type(value).__module__ == "torch" and hasattr(value, "detach")
        else value
    )
    if isinstance(array, np.ndarray) and array.dtype != object:
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return f"{array.dtype}{list(array.shape)} {digest}"
    has_own_text = type(value).__module__ not in ("builtins", "numpy") and hasattr(value, "__dict__")
    if has_own_text and not inspect.ismodule(value):
        return inside([type(value), vars(value)])
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _class(kind: type, base: type, inside: Any) -> str:
    """A class and its parents, down to `base`."""
    if kind.__module__ in ("builtins", "numpy"):
        return kind.__qualname__
    below = [c for c in kind.__mro__ if c not in base.__mro__ and c.__module__ != "builtins"]
    functions = [f for c in below for f in vars(c).values() if inspect.isfunction(f)]
    return "".join(_source(c) for c in below) + inside([_enclosed(f) for f in functions])


def _source(thing: Any) -> str:
    """Source text, or compiled code if there is no source."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return _code(thing)


def _code(thing: Any) -> str:
    """Compiled code of a function or of all functions of a class; equal in every process."""
    if isinstance(thing, type):
        return repr([(name, _code(value)) for name, value in sorted(vars(thing).items()) if callable(value)])
    code = getattr(thing, "__code__", thing)
    if not inspect.iscode(code):
        return type(thing).__name__
    constants = [_code(c) if inspect.iscode(c) else repr(c) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_freevars, constants))


def _enclosed(function: Any) -> list[tuple[str, Any]]:
    """Names and values that a function captures from its enclosing function."""
    names = function.__code__.co_freevars
    return [
        (name, _of_cell(cell))
        for name, cell in zip(names, function.__closure__ or (), strict=True)
        if name != "__class__"
    ]


def _of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
