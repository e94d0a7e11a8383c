"""The folder that `kvreplay figures CONFIG -o DIR` writes: figures, verdicts, and the data behind them."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from kvbase.cells import HEAD

from ..drawing.saving import SavedFigure
from ..errors import ResultsError
from ..figures.config import NEEDED
from ..figures.listing import command_of
from ..stats.verdict import OUTCOMES
from .claims import Claim
from .html import anchor, link
from .provenance import data_text

DESCRIBED = "figure.json"
PLACE = ["model", *HEAD]  # what a row of results.csv or of a cluster table is of


@dataclass(frozen=True)
class Made:
    """One figure configuration's folder. `said`: its figure.json; `data`: what was replayed, in words."""

    folder: Path
    said: dict
    figures: list[SavedFigure]
    claims: list[Claim]
    data: str

    @property
    def paper(self):
        return self.said["paper"]

    @property
    def id(self):
        return anchor(f"figure-{self.said['name']}")

    @property
    def command(self):
        """The command that drew it, with its overrides."""
        given = [f"-s {shlex.quote(text)}" for text in self.said["overrides"]]
        quick = ["--quick"] if self.said["quick"] else []
        return " ".join([command_of(self.said["config"]), *quick, *given])


def holds_figures(folder):
    return any(Path(folder).glob(f"*/{DESCRIBED}"))


def read_folder(folder):
    """([Made] by name, names of subfolders without a drawing); raises ResultsError."""
    folders = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    made = [read_made(path) for path in folders if (path / DESCRIBED).is_file()]
    unfinished = [path.name for path in folders if not (path / DESCRIBED).is_file()]
    return made, unfinished


def read_made(folder):
    """The Made of one folder; raises ResultsError if figure.json is not what `kvreplay figures` writes."""
    path = folder / DESCRIBED
    try:
        said = {"traces": [], "overrides": [], "quick": False} | json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in ("name", *NEEDED, "mark_means", "config") if not _is_text(said[key])]
        missing += [key for key in ("traces", "overrides") if not _are_texts(said[key])]
        figures = [_drawn(folder, entry) for entry in said["figures"]]
        data = data_behind(folder, said["traces"])
        claims = [_claim(said, verdict, data) for verdict in said["verdicts"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ResultsError(f"{path}: not written by `kvreplay figures`: {problem!r}") from problem
    if missing:
        raise ResultsError(f"{path}: {missing[0]} is not a text")
    return Made(folder, said, figures, claims, data)


def _is_text(value):
    return isinstance(value, str) and value != ""


def _are_texts(values):
    return isinstance(values, list) and all(map(_is_text, values))


def _drawn(folder, entry):
    if not _is_text(entry["title"]) or not isinstance(entry.get("caption", ""), str):
        raise ValueError(f"a title or a caption is not a text: {entry['title']!r}, {entry.get('caption')!r}")
    narrow = folder / entry["narrow"] if entry.get("narrow") else None
    return SavedFigure(
        entry["title"], folder / entry["png"], folder / entry["csv"], narrow, entry.get("caption", "")
    )


def _claim(said, verdict, data):
    odd = [key for key in ("claim", "source", "how") if not _is_text(verdict[key])]
    if odd or not isinstance(verdict.get("numbers", ""), str):
        raise ValueError(f"a verdict's {(odd or ['numbers'])[0]} is not a text")
    if verdict["outcome"] not in OUTCOMES:
        raise ValueError(f"outcome {verdict['outcome']!r} is not one of {', '.join(OUTCOMES)}")
    seen = link("figure", f"#{anchor('figure-' + said['name'])}")
    how, numbers = verdict["how"], verdict.get("numbers", "")
    return Claim(
        said["paper"], verdict["claim"], verdict["source"], how, verdict["outcome"], numbers, data, seen
    )


def places(folder):
    """The distinct (trace, model, prompt, layer, kv head) of every table of steps in `folder`."""
    tables = [table for path in _step_tables(folder) if (table := _places_of(path)) is not None]
    return pd.concat(tables).drop_duplicates() if tables else pd.DataFrame(columns=PLACE)


def _step_tables(folder):
    return sorted([*folder.glob("*/results.csv"), *folder.glob("*.csv")])


def _places_of(path):
    """The places of a table; None if it names no heads (numbers behind a picture, or bounds)."""
    head = pd.read_csv(path, nrows=0).columns if path.stat().st_size else []
    if not set(PLACE) <= set(head):
        return None
    return pd.read_csv(path, usecols=PLACE, dtype=str, keep_default_na=False)[PLACE].drop_duplicates()


def data_behind(folder, traces):
    """The data behind a figure, in words; `traces`: names of the trace files that it used."""
    found = places(folder)
    if len(found):
        return data_text(found)
    return f"trace {', '.join(traces)}, without a replay" if traces else "formulas alone"
