"""Results as one typed table: from a folder, a file, or several of them together."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import ResultsError
from .joined import CELL, joined
from .labels import add_labels
from .meta import Meta, load_meta
from .parquet import read_parquet
from .results_csv import read_results_csv, row_number


def load(source):
    """One row per cell, failed cells included, from a results folder, a results.csv or a results.parquet; for
    a list of them the rows of all, where a cell that is in several counts once.

    Counts are nullable integers, measures are floats (NaN where the field is empty). A column outside the
    contract is floats if all its fields are numbers. `params`, `given` and `extras` are dicts, `params_json`,
    `given_json` and `extras_json` their canonical text, `label` the legend entry, `oracle` whether the method
    sees what a cache could not. `frame.attrs["meta"]` holds results.meta.json, {} without that file, {"runs":
    [one each]} for several sources; `frame.attrs["folders"]` lists the folders with the arrays of the runs.

    Raises ResultsError; also if a cell has different numbers in two sources (except for the times of the
    run). Source: docs/formats.md.
    """
    several = isinstance(source, list | tuple)
    places = [Path(place) for place in (source if several else [source])]
    if not places:
        raise ResultsError("no results to load: the list of folders is empty")
    tables = [_table(place) for place in places]
    frame = add_labels(joined([(place, table) for place, (table, _) in zip(places, tables, strict=True)]))
    metas = [meta for _, meta in tables]
    frame.attrs["meta"] = Meta({"runs": metas} if several else metas[0])
    frame.attrs["folders"] = [
        folder for place, meta in zip(places, metas, strict=True) for folder in _folders(place, meta)
    ]
    return frame


def _table(place):
    """(typed table, results.meta.json) of one source; a folder's results.csv is newer than its parquet."""
    if place.suffix == ".parquet" and not place.is_dir():
        frame, meta = read_parquet(place)
        return checked(frame, place), meta
    file = place if place.suffix == ".csv" and not place.is_dir() else place / "results.csv"
    if not file.is_file() and (place / "results.parquet").is_file():
        return _table(place / "results.parquet")
    return checked(read_results_csv(file), file), load_meta(file.parent)


def checked(frame, path):
    """A typed table with its parameters as dicts; raises ResultsError if a cell is there twice."""
    frame["params_json"] = frame["params"]
    frame["given_json"] = frame["given"] if "given" in frame else frame["params"]
    _refuse_repeated_cells(frame, path)
    frame["extras_json"] = _texts(frame["extras"]) if "extras" in frame else ""
    objects = {"params": frame["params"], "given": frame["given_json"], "extras": frame["extras_json"]}
    return frame.assign(**{name: _parsed(texts, path, name) for name, texts in objects.items()})


def _texts(column):
    """A column of texts: a column without any entry was read as missing numbers."""
    return column.where(column.notna(), "").astype(str)


def _parsed(texts, path, name):
    """[rows] the JSON objects; equal texts share one dict, an empty text means no parameters."""
    place, known = pd.factorize(texts)
    found = np.empty(len(known), dtype=object)
    for i, text in enumerate(known):
        try:
            found[i] = json.loads(text) if text else {}
        except ValueError as problem:
            raise ResultsError(f"{path}: {name} is not JSON: {text[:80]!r}") from problem
        if not isinstance(found[i], dict):
            raise ResultsError(f"{path}: {name} is not a JSON object: {text[:80]!r}")
    return found[place]


def _refuse_repeated_cells(frame, path):
    """Raises ResultsError if a cell is there twice, because it would count twice in every mean."""
    again = frame.duplicated(CELL)
    if again.any():
        raise ResultsError(f"{path}: row {row_number(again)} repeats a cell of an earlier row")


def _folders(place, meta):
    """The folders with the arrays of a source: its own, and those of a sweep's rounds."""
    folder = place if place.is_dir() else place.parent
    rounds = (folder / str(each.get("folder", "")) for each in meta.get("rounds", []))
    return [str(folder), *map(str, rounds)]
