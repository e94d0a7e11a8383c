"""Rows of results that are not in a file: from a replay in this process."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kvbase.files import write_atomic

from .labels import add_labels
from .load import checked
from .meta import Meta
from .results_csv import results_table


class _Text(io.StringIO):
    def __str__(self) -> str:
        return "results of a replay"


def frame_of_rows(rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> pd.DataFrame:
    """The table that `load` returns for these rows in a results.csv, with `meta` as its results.meta.json. A
    row is {column: value}, None where a field is empty. Raises ResultsError."""
    text = _Text(_csv(rows))
    frame = add_labels(checked(results_table(text), text))
    frame.attrs["meta"], frame.attrs["folders"] = Meta(meta), []
    return frame


def write_rows(rows: Sequence[Mapping[str, Any]], folder: str | Path, meta: Mapping[str, Any]) -> Path:
    """Writes the rows as results.csv into a folder, which is created, and `meta` as results.meta.json;
    returns the path of results.csv. Each file is written completely or not at all."""
    file = Path(folder) / "results.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file.with_name("results.meta.json"), json.dumps(meta, indent=2, ensure_ascii=False) + "\n")
    return write_atomic(file, _csv(rows))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _field(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _field(value: Any) -> Any:
    return "" if value is None else repr(value) if isinstance(value, float) else value
