"""Reads results of `kvreplay run` and groups cells of results.csv into instances, each of which is one run of
the model."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path

from kvbase.cells import CELL, EXTENT, INSTANCE
from kvbase.errors import ConfigError
from kvbase.files import reason

COLUMNS = ("key", "model", "params", *CELL, *EXTENT, "status")
LONGEST = 400  # characters of an instance's parameters in a message


@dataclass
class Instance:
    """A method with its parameters, one budget and one seed on one prompt: the cells of all layers and kv
    heads.

    `budget_tokens` and `seed` are texts from results.csv, "" if the method has none.
    """

    trace_id: str
    model: str
    prompt: str
    method: str
    given: str
    budget_tokens: str
    seed: str
    n_prefill: int
    n_tokens: int
    params: str  # resolved parameters in the first layer; some methods resolve them layer by layer
    cells: dict = field(default_factory=dict)  # (layer, kv head) -> key
    row_formats: dict = field(default_factory=dict)  # (layer, kv head) -> its row format, as a text
    failed: list = field(default_factory=list)  # (layer, kv head) of cells without a result
    owners: dict = field(default_factory=dict)  # layer -> the layer whose keys and values it reads

    @property
    def name(self):
        """ "h2o {"row_format":"int4"} B=128 seed 0", for messages; row formats of many heads are cut."""
        given = self.given if len(self.given) <= LONGEST else f"{self.given[:LONGEST]}…"
        parts = [self.method, "" if given == "{}" else given]
        parts += [f"B={self.budget_tokens}" if self.budget_tokens else ""]
        parts += [f"seed {self.seed}" if self.seed else ""]
        return " ".join(part for part in parts if part)

    def replayed(self, layer):
        """The layer whose cells say what is in the cache that `layer` reads."""
        held = any(at == layer for at, _ in self.cells)
        return layer if held else self.owners.get(layer, layer)

    def keys_of(self, layer):
        """Keys of the cells of the cache that a layer reads, by kv head."""
        return self._of_heads(self.cells, layer)

    def row_formats_of(self, layer):
        """Row formats of the cells of the cache that a layer reads, by kv head."""
        return self._of_heads(self.row_formats, layer)

    def _of_heads(self, facts, layer):
        replayed = self.replayed(layer)
        return [fact for (at, _), fact in sorted(facts.items()) if at == replayed]

    def parameters(self):
        """Resolved parameters of the first layer, as a dict."""
        return json.loads(self.params)


class Results:
    """A results folder with `results.csv` and, if kept tokens were saved, `kept.h5`. Raises ConfigError."""

    def __init__(self, folder):
        self.folder = Path(folder)
        require_results(self.folder)
        table = self.folder / "results.csv"
        self.instances = _gather(table, _read_rows(table))
        self.kept_file = self.folder / "kept.h5"
        self.meta = _read_meta(self.folder / "results.meta.json")

    @property
    def config(self):
        """The resolved configuration; {} if not recorded."""
        return self.meta.get("config", {})

    def trace_ids(self):
        """Ids of the traces whose cells the table holds."""
        return sorted({instance.trace_id for instance in self.instances})


def require_results(folder):
    """ConfigError if a folder holds no results. This check is fast, so it runs first."""
    if not (folder / "results.csv").is_file():
        missing = "is a file" if folder.exists() else "no such folder"
        what = "holds no results.csv" if folder.is_dir() else missing
        raise ConfigError(f"{folder}: {what}: give the folder that kvreplay run wrote (its -o)")


def _read_rows(table):
    """Yields the rows one by one: a sweep has hundreds of thousands, each with eighty columns."""
    empty = True
    try:
        with table.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(f"{table}: no column {', '.join(missing)}: not a table of kvreplay run")
            for row in reader:
                empty = False
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{table}: cannot be read ({reason(error)}): give the folder that kvreplay run wrote"
        ) from error
    if empty:
        raise ConfigError(f"{table}: holds no cell")


def _read_meta(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({reason(error)}): run kvreplay run again") from error


def _gather(table, rows):
    found = {}
    for number, row in enumerate(rows, 2):
        try:
            where = (int(row["layer"]), int(row["kv_head"]))
            n_prefill, n_tokens = int(row["n_prefill"]), int(row["n_tokens"])
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{table}:{number}: {error}") from error
        identity = (*(row[name] for name in INSTANCE), n_prefill, n_tokens)
        if identity not in found:
            texts = {name: row[name] for name in (*INSTANCE, "model", "params")}
            found[identity] = Instance(n_prefill=n_prefill, n_tokens=n_tokens, **texts)
        instance = found[identity]
        if where in instance.cells:
            raise ConfigError(f"{table}:{number}: layer {where[0]}, kv head {where[1]} stands twice")
        instance.cells[where] = row["key"]
        instance.row_formats[where] = row.get("row_format", "")
        if where == min(instance.cells):
            instance.params = row["params"]
        if row["status"] != "ok":
            instance.failed.append(where)
    return list(found.values())
