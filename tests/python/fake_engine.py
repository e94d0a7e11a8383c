"""Replaces the program: replays by a formula, and writes the files of `kvreplay run` and `kvreplay sweep`.

`fake_engine(folder, formulas)` makes one. `formulas`: {method: an expression of b (budget), layer, head and
seed}; a method without a budget has a number. Each call adds a line to `calls.jsonl`.
"""

import csv
import hashlib
import io
import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import yaml

BETTER = {"rel_err_out_mean": "less", "rel_err_prefix_mean": "less", "kept_mass_mean": "more",
          "index_recall": "more", "total_bytes": None}  # fmt: skip
HEADS = [(0, 0), (0, 1)]
PREFILL, TOKENS = 768, 1024


def fake_engine(folder, formulas, columns, fails=(), loses=(), codes=None):
    """Returns the program's path. `fails`, `loses`: (method, budget) whose cells fail, or get no row;
    `codes`: {name of a round's folder: exit code with which that round ends before replaying anything}."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = {"formulas": formulas, "columns": columns, "codes": codes or {}}
    rules |= {"fails": list(fails), "loses": list(loses)}
    (folder / "rules.json").write_text(json.dumps(rules))
    program = folder / "kvreplay"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {folder} "$@"\n')
    program.chmod(0o755)
    return program


def in_process_engine(monkeypatch, folder, formulas, columns, **rules):
    """As fake_engine, but in this process: starting processes would take longer than the sweep itself."""

    def attend(words):
        return main(folder, *map(str, words))

    def call(words, accept=(0,)):
        with redirect_stdout(io.StringIO()) as printed:
            code = attend(words)
        return code, printed.getvalue()

    fake_engine(folder, formulas, columns, **rules)
    monkeypatch.setattr("kvanalysis.sweeps.rounds.attend", attend)
    monkeypatch.setattr("kvanalysis.data.metrics.call", call)
    monkeypatch.setattr("kvanalysis.data.metrics.program_path", lambda: str(folder))


def calls(folder):
    """The words of every call except `list`."""
    lines = (folder / "calls.jsonl").read_text().splitlines()
    return [words for words in map(json.loads, lines) if words[0] != "list"]


def main(folder, *words):
    with (folder / "calls.jsonl").open("a") as log:
        log.write(json.dumps(words) + "\n")
    rules = json.loads((folder / "rules.json").read_text())
    if words[0] == "list":
        print(json.dumps([{"name": name, "better": better} for name, better in BETTER.items()]))
        return 0
    if words[:2] == ("sweep", "submit"):
        out = Path(words[2])
        return _replay(rules, *json.loads((out / "planned.json").read_text()), out)
    config, out = words[words.index("-o") - 1], Path(words[words.index("-o") + 1])
    only = words[words.index("--only") + 1] if "--only" in words else None
    if words[:2] == ("sweep", "plan"):
        (out / "planned.json").write_text(json.dumps([config, only]))
        return 0
    return _replay(rules, config, only, out)


def _replay(rules, config, only, out):
    if out.name in rules["codes"]:
        print("asked to stop", file=sys.stderr)
        return rules["codes"][out.name]
    (out / "shards").mkdir(exist_ok=True)
    planned = _cells(rules, yaml.safe_load(Path(config).read_text()))
    cells = [cell for cell in planned if _chosen(cell, only) and not _listed(rules["loses"], cell)]
    with (out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rules["columns"], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)
    failed = sum(cell["status"] != "ok" for cell in cells)
    counts = {"planned": len(cells), "ok": len(cells) - failed, "failed": failed, "missing": 0}
    (out / "results.meta.json").write_text(json.dumps({"cells": counts, "columns": {}, "isa": "fake"}))
    return 1 if failed else 0


def _cells(rules, config):
    budgets, seeds = config["budget"]["tokens"], range(config.get("seeds", {}).get("count", 1))
    for layer, head in HEADS:
        for method in config["methods"]:
            given = dict(method) if isinstance(method, dict) else {"name": method}
            name = given.pop("name")
            formula = rules["formulas"][name]
            for budget in budgets if isinstance(formula, str) else [""]:
                for seed in seeds if isinstance(formula, str) and "seed" in formula else [""]:
                    yield _cell(rules, name, given, formula, layer, head, budget, seed)


def _cell(rules, name, given, formula, layer, head, budget, seed):
    values = {"b": budget, "layer": layer, "head": head, "seed": seed}
    cell = {"trace_id": "ab" * 32, "model": "made up", "prompt": "p,0", "layer": layer, "kv_head": head,
            "method": name, "params": json.dumps(given), "given": json.dumps(given), "seed": seed,
            "budget_tokens": budget, "n_prefill": PREFILL, "n_tokens": TOKENS, "status": "ok"}  # fmt: skip
    cell["key"] = hashlib.sha256(repr(cell).encode()).hexdigest()[:16]
    if _listed(rules["fails"], cell):
        return cell | {"status": "failed", "error": "made to"}
    return cell | {
        "rel_err_out_mean": eval(formula, {}, values) if isinstance(formula, str) else formula,
        "select_s": time.perf_counter(),
    }


def _listed(pairs, cell):
    return [cell["method"], cell["budget_tokens"]] in pairs


def _chosen(cell, only):
    """Whether a table row matches the cell; its empty fields match anything."""
    if only is None:
        return True
    with Path(only).open(newline="") as file:
        return any(
            all(not text or str(cell[name]) == text for name, text in row.items())
            for row in csv.DictReader(file)
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
