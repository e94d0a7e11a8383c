"""Compares the engine with the numpy definitions: one run for many cases, then cell by cell."""

import subprocess
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from engine_cases_tier2 import SEED
from kvreplay_cli import BINARY, kvreplay
from token_lists import ragged

WEIGHT_TOLERANCE = 1e-9  # relative; cases with solved masses have their own tolerance
READ = ["layer", "kv_head", "method", "budget_tokens", "key", "status", "error"]
HAS_RESULTS = (0, 1)  # exit code 1: some cells failed, and their rows say why


@cache
def known_methods():
    listed = subprocess.run([BINARY, "list", "methods"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.strip()}


def in_folder(value, folder):
    """The entry with {folder} replaced by the folder."""
    if isinstance(value, dict):
        return {k: in_folder(v, folder) for k, v in value.items()}
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


def per_entry(rows, cases, budgets):
    """Splits one head's rows by entry. Rows are in the order of the entries: one per budget, or one
    without."""
    at = 0
    for case in cases:
        count = 1 if pd.isna(rows[at].budget_tokens) else len(budgets)
        found = rows[at : at + count]
        assert {row.method for row in found} == {case.entry["name"]}, "rows are not in the entries' order"
        at += count
        yield found


class Runs:
    """Runs each batch once; if the engine refuses one of its entries, it runs entry by entry.

    A batch: cases with equal trace, budgets and prompt. write_files(folder, trace) writes the trace t.h5 and
    the files that entries name; known(case): whether the engine has all that the case needs.
    """

    def __init__(self, root, cases, write_files, known=lambda case: case.entry["name"] in known_methods()):
        self.root, self.write_files, self.known = root, write_files, known
        self.batches, self.done = {}, {}
        for case in cases:
            for trace in case.traces:
                self.batches.setdefault((trace, case.budgets, case.prompt), []).append(case)

    def batch(self, key):
        if key not in self.done:
            self.done[key] = self.run(key)
        return self.done[key]

    def run(self, key):
        cases = [case for case in self.batches[key] if self.known(case)]
        folder = self.root / f"batch{list(self.batches).index(key)}"
        error, rows = self.replay(folder, *key, cases)
        return cases, folder, error, rows

    def replay(self, folder, trace, budgets, prompt, cases):
        """Runs the cases; returns (error text or None, {(case index, layer, kv head): rows})."""
        folder.mkdir(parents=True, exist_ok=True)
        self.write_files(folder, trace)
        config = {
            "schema": 1,
            "traces": ["t.h5"],
            "select": {"prompts": ["p0"]},  # the other prompts serve calibration only
            "replay": {"prompt": prompt},
            "methods": [in_folder(case.entry, folder) for case in cases],
            "budget": {"tokens": list(budgets)},
            "seeds": {"first": SEED, "count": 1},
            "run": {"precision": "double"},
            "output": {"dir": "out", "save": ["kept", "outputs"]},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        done = kvreplay("run", folder / "run.yaml", "--force", "--progress", "none", timeout=600)
        if done.returncode not in HAS_RESULTS:
            return f"exit {done.returncode}: {done.stderr}", {}
        rows = pd.read_csv(folder / "out/results.csv", usecols=READ)
        return None, {
            (i, layer, head): found
            for (layer, head), part in rows.groupby(["layer", "kv_head"])
            for i, found in enumerate(per_entry([*part.itertuples()], cases, budgets))
        }

    def of(self, case, trace):
        """(folder, {(layer, kv head): rows}) of one case."""
        key = (trace, case.budgets, case.prompt)
        cases, folder, error, rows = self.batch(key)
        index = cases.index(case)
        if error is not None:
            folder, index = folder / f"entry{index}", 0
            error, rows = self.replay(folder, *key, [case])
            assert error is None, error
        return folder / "out", {k[1:]: v for k, v in rows.items() if k[0] == index}

    def check(self, case, trace, layers):
        """Compares every head at every budget; layers: those of the trace. Skips cases that the engine
        lacks."""
        if not self.known(case):
            pytest.skip(f"the engine does not have {case.label}")
        out, rows = self.of(case, trace)
        for at, B in enumerate(case.budgets):
            wanted = case.reference(layers, B)
            for heads, results in zip(layers, wanted, strict=True):
                for head, want in zip(heads, results, strict=True):
                    found = rows[head.layer, head.kv_head]
                    row = found[min(at, len(found) - 1)]
                    assert row.status == "ok", row.error
                    where = f"budget {B} layer {head.layer} kv head {head.kv_head}"
                    try:
                        compare(Path(out), row.key, want, case.tolerance)
                    except AssertionError as error:
                        raise AssertionError(f"{where}: {error}") from error


def parameters(cases):
    """Parameters of one test per case and trace."""
    return [pytest.param(c, t, id=f"{c.label} {t} B={c.budgets[0]}") for c in cases for t in c.traces]


def same_lists(group, name, want):
    got = ragged(group, name)
    assert len(got) == len(want), f"{len(got)} {name} lists, expected {len(want)}"
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert np.array_equal(mine, theirs), f"{name} list {i}: {mine.tolist()} expected {theirs.tolist()}"


def same_weights(group, name, lists, tolerance):
    want = np.concatenate(lists)
    got = group[name][:] if name in group else np.ones(len(want))
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max(), name


@cache
def opened(path):
    """The open file of a batch; hundreds of cells are read from it."""
    return h5py.File(path)


def compare(out, key, want, tolerance):
    """Compares one cell with its definition; values that the definition leaves out are not compared."""
    kept = opened(out / "kept.h5")[key]
    if want.kept is not None:
        same_lists(kept, "kept", want.kept)
    if want.attended is not None:
        same_lists(kept, "attended", want.attended)
    for name in ("num", "den"):
        if getattr(want, name) is not None:
            same_weights(kept, name, getattr(want, name), max(WEIGHT_TOLERANCE, tolerance))
    got = opened(out / "outputs.h5")[key]["out"][:]
    assert got.shape == want.out.shape
    assert np.abs(got - want.out).max() <= tolerance * np.abs(want.out).max(), "outputs"
