"""confirm.csv: one row per instance and range of distances; the file is rewritten after each instance."""

import csv
import hashlib
import json
from contextlib import contextmanager
from pathlib import Path

from kvbase.cells import CONFIRMED, CONFIRMED_FACTS
from kvbase.errors import ConfigError
from kvbase.files import reason, take_lock, whole_file

from .layer_errors import COLUMNS as LAYER_MEASURES

# What the model writes with `--generate`.
ANSWERS = (
    *("task", "question", "answer_limit", "answer_correct_full", "answer_correct", "answer_text_full"),
    *("answer_text", "answer_selection", "answer_s"),
)
MEASURES = (
    "distance_from",
    "distance_to",
    "n_rows",
    "loss_full",
    "loss",
    "loss_increase",
    "kl_mean",
    "kl_p95",
    "top1_agreement",
    "kld_mean",
    "kld_mean_se",
    "kld_median",
    "kld_p999",
    "kld_p99",
    "kld_p95",
    "kld_p90",
    "kld_max",
    "same_top",
    "same_top_se",
    "dp_mean",
    "dp_rms",
    "ln_ppl_ratio",
    "answer_exact_full",
    "answer_exact",
    "answer_rank_full",
    "answer_rank",
    "answer_logprob_full",
    "answer_logprob",
    *ANSWERS,
    "n_draws",
    "loss_increase_sd",
    "kl_mean_sd",
)
COLUMNS = (*CONFIRMED_FACTS, *MEASURES, "confirm_s", "status", "error")
LAYER_COLUMNS = (*CONFIRMED_FACTS, *LAYER_MEASURES)


def key_of(instance, cells, selection, settings):
    """Hash of everything that determines an instance's numbers, without paths; `cells`: the cells' keys."""
    text = json.dumps([sorted(cells), instance.prompt, selection, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cells_hash(keys):
    """Hash of the keys of an instance's cells in results.csv: identifies the results behind a row."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]


def identity(instance, key, selection, layers):
    """The columns CONFIRMED_FACTS of a row."""
    shared = ("trace_id", "model", "prompt", "method", "params", "given", "budget_tokens", "seed")
    texts = {name: getattr(instance, name) for name in (*shared, "n_prefill", "n_tokens")}
    return {
        "key": key,
        "cells": cells_hash(instance.cells.values()),
        **texts,
        "selection": selection,
        "layers": spans(layers),
    }


def spans(numbers):
    """ "0-29", "0,7,15" or "0-3,7" of ascending numbers."""
    parts = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


class Table:
    """A CSV file that is complete at any moment; several processes may add to it. Rows of finished instances
    are kept. New rows replace those of the same key, and those of results that no longer exist."""

    def __init__(self, path, columns=COLUMNS):
        self.path = Path(path)
        self.columns = columns
        self.seen = None  # the file's stamp when its rows were last read or written
        self.rows = self._read()

    def _read(self):
        """{key: rows} of the file."""
        found, self.seen = {}, self._stamp()
        if self.seen is None:
            return found
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file, restval="")
                for row in reader:
                    found.setdefault(row["key"], []).append(row)
        except (OSError, KeyError, csv.Error, UnicodeDecodeError) as error:
            what = f"not a table of this program ({reason(error)})"
            raise ConfigError(f"{self.path}: {what}: move it away") from error
        if strange := set(reader.fieldnames or ()) - set(self.columns):
            names = ", ".join(sorted(map(str, strange)))
            raise ConfigError(f"{self.path}: columns that this version does not write: {names}; move it away")
        return found

    def done(self, key):
        """True if an instance has a result."""
        return any(row.get("status", "ok") == "ok" for row in self.rows.get(key, ()))

    def draws(self, key):
        """Over how many draws an instance's result is averaged; 1 in tables of older versions, which lack the
        column; 0 without a result."""
        return min((int(row.get("n_draws") or 1) for row in self.rows.get(key, ())), default=0)

    def answer_limit(self, key):
        """How many tokens the answer in an instance's result may have; 0 if none was written."""
        return max((int(row.get("answer_limit") or 0) for row in self.rows.get(key, ())), default=0)

    def put(self, key, rows):
        """Adds an instance's rows, keeping rows that other processes have added meanwhile."""
        try:
            with self._locked():
                others = self._read() if self._stamp() != self.seen else self.rows
                self.rows = _without_replaced(others, rows[0]) | {key: rows}
                self._write()
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {reason(error)}") from error

    def _stamp(self):
        """A value that changes when another process rewrites the file; None if there is no file."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    @contextmanager
    def _locked(self):
        """While entered, no other process rewrites the table."""
        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            take_lock(lock.fileno())
            yield

    def _write(self):
        with whole_file(self.path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            for rows in self.rows.values():
                writer.writerows(rows)
        self.seen = self._stamp()


def _without_replaced(found, row):
    """{key: rows} without those of the row's instance that were confirmed from other cells."""

    def is_replaced(old):
        return old.get("cells") != row["cells"] and all(old.get(name) == str(row[name]) for name in CONFIRMED)

    return {key: rows for key, rows in found.items() if not is_replaced(rows[0])}
