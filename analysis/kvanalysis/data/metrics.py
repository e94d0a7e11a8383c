"""The metrics by which methods can be compared: what they are called, and whether more or less is better.

The engine says both of its columns, in results.meta.json and in `kvreplay list metrics --json`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvbase.program import call, program_path

from ..errors import ConfigError

LESS, MORE = "less", "more"
MAIN = "rel_err_out_mean"  # every finished row has it


@dataclass(frozen=True)
class Metric:
    """A column of results.csv. `better`: LESS or MORE; a column in which MORE is better is at most 1, and
    methods are compared by one minus it. `words`: what they are compared by."""

    name: str
    better: str
    words: str


def loss(values: Any, better: str) -> Any:
    """Numbers of a column, an array or a table, turned so that less is better."""
    return 1 - values if better == MORE else values


def metrics_of(meta: Mapping[str, Any]) -> dict[str, Metric]:
    """{column: Metric} of results.meta.json as `load` holds it. If it says nothing, because an earlier
    version or another program wrote it, those of the installed engine. Raises ConfigError."""
    said = {}
    for run in meta.get("runs", [meta]):
        said |= run.get("columns", {})
    return _compared(said) or known_metrics()


def known_metrics() -> dict[str, Metric]:
    """{column: Metric} of the installed engine. Raises ConfigError."""
    return _compared(metric_facts())


def metric_facts() -> dict[str, dict[str, Any]]:
    """{metric: what the installed engine says of it}: unit, help, and where it says so better and words.
    Raises ConfigError."""
    return _asked(program_path())


@cache
def _asked(_: str) -> dict[str, dict[str, Any]]:
    code, printed = call(["list", "metrics", "--json"])
    if code:
        raise ConfigError("`kvreplay list metrics` failed; is KVREPLAY the right program?")
    return {facts["name"]: facts for facts in json.loads(printed)}


def _compared(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, Metric]:
    return {
        name: Metric(name, facts["better"], facts.get("words", name))
        for name, facts in columns.items()
        if facts.get("better") in (LESS, MORE)
    }
