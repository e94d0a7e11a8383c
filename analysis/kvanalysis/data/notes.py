"""The engine's notes on a table in results.meta.json: budgets, instances and heads without information."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .row_formats import row_format_text


@dataclass(frozen=True)
class NotedInstance:
    """A method with its `given` parameters (those that differ from the defaults); `brief`: the note in its
    row of a summary."""

    method: str
    given: dict[str, Any]
    label: str
    brief: str


@dataclass(frozen=True)
class Note:
    """One note; docs/troubleshooting.md explains each kind. `instances` is empty if the note is about
    the whole table; `budgets` in tokens; `traces` are ids; `cells` and `heads` count where it holds;
    `text` is one sentence."""

    kind: str
    instances: tuple[NotedInstance, ...]
    budgets: tuple[int, ...]
    traces: tuple[str, ...]
    cells: int
    heads: int
    text: str

    def brief(self, trace_id: str, method: str, given: Mapping[str, Any], budget: int | None) -> str:
        """The note for an instance at a budget (None: it takes none) on a trace; "" if there is none."""
        at = budget in self.budgets if budget is not None else not self.budgets
        if not at or trace_id not in self.traces:
            return ""
        same = (one for one in self.instances if one.method == method and one.given == given)
        return next((one.brief for one in same), "")


def notes_of(meta: Mapping[str, Any]) -> list[Note]:
    """The notes of results.meta.json as `load` holds it, in the engine's order. Empty if an older program
    wrote the file, and for several sources, because notes on each alone need not hold for all together."""
    return [_note(said) for said in meta.get("notes", [])]


def _note(said: Mapping[str, Any]) -> Note:
    short = _short_formats([one["given"] for one in said["instances"]])
    return Note(
        **{name: said[name] for name in ("kind", "cells", "heads")},
        instances=tuple(
            NotedInstance(**one | {name: short(one[name]) for name in ("label", "brief")})
            for one in said["instances"]
        ),
        budgets=tuple(said["budgets"]),
        traces=tuple(said["traces"]),
        text=short(said["text"]),
    )


def _short_formats(all_given: list[dict[str, Any]]) -> Callable[[str], str]:
    """A function that replaces row formats that the engine writes out by their short names, as in labels."""
    formats = [given["row_format"] for given in all_given if "row_format" in given]
    names = {f"row_format={_written(each)}": row_format_text(each) for each in formats}

    def short(text: str) -> str:
        for written, name in names.items():
            text = text.replace(written, name)
        return text

    return short


def _written(row_format: str | dict[str, Any]) -> str:
    if isinstance(row_format, str):
        return row_format
    return json.dumps(row_format, sort_keys=True, separators=(",", ":"))
