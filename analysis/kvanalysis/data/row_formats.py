"""How the rows of a cache are stored, as in results: the short name of a row format, and equality of two.

A row format is a word, a map with a name, or a map of parts; or it chooses among formats by age, or by layer
and kv head. Two row formats are equal if they differ only in defaults that one of them leaves out
(docs/configuration.md); the short name leaves defaults out.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

SOURCE = "source"
SHARED = ("rotate", "rotate_block", "keys")  # next to parts, they apply to both
KEYS_ALONE = "keys"  # has no meaning for values
PROTECTION = {"sinks": 0, "recent": 1}
BARE = ("rotation", "codebook", "rotate", "keys")  # their values are shown without their names
MOST_RULES = 4  # a choice by head with more has a name that counts them
# The defaults of parameters, as `kvreplay describe FORMAT` prints them, and of transforms combined with
# formats.
_INTEGERS, _FLOATS, _MICRO = {"group": 64}, {"scale": 1.0}, {"block": 32, "scale_rounding": "floor"}
_ROTATED = {"bits": 3, "rotation": "haar", "codebook": "beta"}
_KIVI = {"bits": 4, "g": 32, "R": 128}
COMPOSED = {"rotate": "none", "keys": "post_rope"}
DEFAULTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("int8", "int4", "int3", "int2"), _INTEGERS),
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2"), _FLOATS),
    "nvfp4": {"scale": 1.0, "search": "max"},
    "mxfp4": _MICRO,
    "mxfp8": _MICRO | {"element": "e4m3"},
    "int4_token_head": {"rotate": "hadamard_signed"},
    "tq_mse": _ROTATED | {"norm_correction": False},
    "tq_prod": _ROTATED,
    "kvquant": {"bits": 4, "outliers": 1.0, "calibrate_from": 4, "keys": "pre_rope"},
    "polar": {"levels": [4, 2, 2, 2], "rotation": "haar"},
    "pca": {"bits": 2, "calibrate_from": 4, "keys": "pre_rope"},
    "q6_0": {"scale": "fit"},
    "oscar": {"clip_key": 0.96, "clip_value": 0.92, "group": 128, "scales": "f16", "calibration": "self"},
    "kivi": _KIVI,
    "gear": _KIVI | {"rank": 4, "outliers": 2.0, "order": "outliers_first"},
}


def same_row_format(first: str | dict, second: str | dict) -> bool:
    """Whether two row formats are equal, with defaults left out or written."""
    if _entries(first) or _entries(second):
        return row_format_text(first) == row_format_text(second)
    return _normal(first) == _normal(second)


def row_format_text(row_format: str | dict) -> str:
    """The short name: "int4 hadamard", "K tq_mse 3 + V source", "kvquant 3 sinks=4".

    It contains no comma, because commas separate labels in lists on a command line.
    """
    if entries := _entries(row_format):
        return " ".join([_choice_text(entries), *_words(_rest(row_format))])
    key, value, rest = _normal(row_format)
    same = {**key, KEYS_ALONE: None} == {**value, KEYS_ALONE: None}
    parts = _part_text(key) if same else f"K {_part_text(key)} + V {_part_text(value)}"
    return " ".join([parts, *_words(rest)])


def parts_named(row_format: str | dict) -> tuple[str, str]:
    """The names of the formats of keys and of values; of a choice, those of the first that codes."""
    if entries := _entries(row_format):
        named = [parts_named(entry["format"]) for entry in entries]
        return next((names for names in named if set(names) != {SOURCE}), named[0])
    key, value, _ = _normal(row_format)
    return key["name"], value["name"]


def coded_parts(row_format: str | dict) -> list[dict[str, Any]]:
    """The formats in which rows are coded, of all entries of a choice: of keys and of values, without
    parameters that have their default."""
    if entries := _entries(row_format):
        return [part for entry in entries for part in coded_parts(entry["format"])]
    return [part for part in _normal(row_format)[:2] if part["name"] != SOURCE]


def is_rotated(row_format: str | dict) -> bool:
    """Whether `rotate` turns a part before it is coded; formats that include a rotation do not count."""
    if entries := _entries(row_format):
        return any(is_rotated(entry["format"]) for entry in entries)
    return any(part.get("rotate", "none") != "none" for part in _normal(row_format)[:2])


def is_choice(row_format: str | dict) -> bool:
    """Whether layers or kv heads have row formats of their own."""
    return not isinstance(row_format, str) and "by" in row_format


def _entries(row_format: str | dict) -> list[dict]:
    """The entries of a choice by age, or by layer and kv head; [] for one format."""
    given = {} if isinstance(row_format, str) else row_format
    return given.get("age") or given.get("by") or []


def _choice_text(entries: list[dict]) -> str:
    """ "<512 bf16 | nvfp4", "L0+-1 H2 int8 | int4"; many rules are counted, and a part of their hash
    keeps two such choices different: "13 formats by head #1a2b"."""
    if len(entries) > MOST_RULES and "newer_than" not in entries[0]:
        formats = {row_format_text(entry["format"]) for entry in entries}
        told = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
        return f"{len(formats)} formats by head #{told[:4]}"
    return " | ".join(" ".join([*_where(entry), row_format_text(entry["format"])]) for entry in entries)


def _where(entry: dict) -> Iterator[str]:
    if "newer_than" in entry:
        yield f"<{entry['newer_than']}"
    for letter, name in (("L", "layers"), ("H", "heads")):
        if name in entry:
            yield letter + "+".join(str(each) for each in entry[name])


def _normal(row_format: str | dict) -> tuple[dict, dict, dict]:
    """(key, value, options for both), without defaults."""
    given = {"name": row_format} if isinstance(row_format, str) else row_format
    if "name" in given:
        part = {name: each for name, each in given.items() if name not in _REST}
        return _part(part), _part(part, values=True), _rest(given)
    shared = {name: given[name] for name in SHARED if name in given}
    key, value = (given.get(name, SOURCE) for name in ("key", "value"))
    return _part(key, shared), _part(value, shared, values=True), _rest(given)


def _part(part: str | dict, shared: dict | None = None, values: bool = False) -> dict:
    part = {"name": part} if isinstance(part, str) else part
    if part["name"] == SOURCE:
        return {"name": SOURCE}
    defaults = COMPOSED | DEFAULTS.get(part["name"], {})
    found = (shared or {}) | part
    if values:
        found = {name: each for name, each in found.items() if name != KEYS_ALONE}
    return {name: each for name, each in found.items() if name not in defaults or each != defaults[name]}


def _rest(given: dict) -> dict:
    found = {name: plain(given[name]) for name, plain in _REST.items() if name in given}
    return {name: each for name, each in found.items() if each}


_REST = {
    "full_precision": lambda tokens: {
        name: each for name, each in tokens.items() if each != PROTECTION.get(name)
    },
    "skip_layers": sorted,
    "own_row": lambda word: "" if word == "exact" else word,
}


def _part_text(part: dict) -> str:
    name = part["name"]
    bits = part.get("bits", DEFAULTS.get(name, {}).get("bits"))
    numbered = name if bits is None else f"{name} {bits}"
    return " ".join([numbered, *_words({key: part[key] for key in part if key not in ("name", "bits")})])


def _words(found: dict) -> Iterator[str]:
    for name, value in sorted(found.items(), key=lambda item: (item[0] not in BARE, item[0])):
        if isinstance(value, dict):
            yield from _words(value)
        elif name in BARE and value != "none":
            yield str(value)
        else:
            yield name if value is True else f"{name}={_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "/".join(map(_plain, value)) if isinstance(value, list) else str(value)
