"""Replays once by the program and once by `kvreplay.replay`, and compares all that must be equal."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import kvreplay
import numpy as np
from kvreplay_cli import ROOMS
from kvreplay_cli import kvreplay as program

TIMES = {"select_s", "attend_s"}
FILE_COLUMNS = {"key", "trace_id", "model"}  # columns that differ for arrays
SAVED = ("curves", "kept", "outputs")


def made_layer(seed, *, heads=4, kv_heads=2, tokens=160, dim=16, v_dim=24, query_rows=None, dtype=np.float32):
    """(q, k, v) with a sink and keys in a few clusters, so that methods make nontrivial choices."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(kv_heads, 6, dim)) * 1.5
    k = centres[:, rng.integers(0, 6, tokens)] + rng.normal(size=(kv_heads, tokens, dim))
    k[:, 0] *= 2
    rows = tokens if query_rows is None else query_rows
    q = np.repeat(k[:, rng.integers(0, tokens, rows)], heads // kv_heads, axis=0)
    q = q + rng.normal(size=q.shape)
    v = rng.normal(size=(kv_heads, tokens, v_dim))
    return tuple(np.ascontiguousarray(x.astype(dtype)) for x in (q, k, v))


def run_program(trace, folder, *, jobs=2, save=SAVED, precision="single", **config):
    """Runs the program on a configuration with these entries; returns its results folder."""
    folder = Path(folder)
    whole = {
        "schema": 1,
        "traces": [str(trace)],
        "run": {"jobs": jobs, "precision": precision},
        "output": {"dir": str(folder / "out"), "save": list(save)},
        **config,
    }
    (folder / "config.yaml").write_text(json.dumps(whole))
    result = program("run", folder / "config.yaml", "--progress", "none")
    assert result.returncode == 0, result.stderr
    return folder / "out"


def rows_of_program(out):
    """{place of a cell: its row of results.csv}."""
    with (out / "results.csv").open(newline="") as file:
        return {place(row): row for row in csv.DictReader(file)}


def place(row):
    """The place of a cell, independent of the trace's name."""
    names = ("prompt", "layer", "kv_head", "method", "params", "given", "budget_tokens", "seed")
    return tuple("" if row[name] is None else str(row[name]) for name in names)


def check_same_rows(run, out, ignored=frozenset(), without=frozenset()):
    """Both have the same cells, and all columns except times are bitwise equal. `without`: methods that only
    the program ran."""
    theirs = {where: row for where, row in rows_of_program(out).items() if row["method"] not in without}
    ours = {place(cell.row): cell.row for cell in run.cells}
    assert ours and set(ours) == set(theirs)
    for where, row in ours.items():
        assert set(row) == set(theirs[where])
        for name in set(row) - TIMES - ignored:
            value, text = row[name], theirs[where][name]
            same = text == "" if value is None else type(value)(text) == value
            assert same, f"{where}: {name} is {value!r} here and {text!r} there"


def check_same_arrays(run, out, kinds=SAVED):
    """Saved arrays, by default kept sets, row errors and outputs, are bitwise equal."""
    keys = {where: row["key"] for where, row in rows_of_program(out).items()}
    compared = 0
    for kind in kinds:
        with h5py.File(out / f"{kind}.h5") as file:
            for cell in run.cells:
                for name, stored in file[keys[place(cell.row)]].items():
                    held = cell.arrays[name]
                    assert held.dtype == stored.dtype and held.shape == stored.shape, name
                    assert held.tobytes() == stored[()].tobytes(), f"{place(cell.row)}: {name}"
                    compared += 1
    assert compared >= 6 * len(run.cells)


def check_equal_runs(one, other, ignored=frozenset()):
    """Two runs in Python have bitwise equal cells."""
    assert len(one) == len(other) > 0
    for a, b in zip(one.cells, other.cells, strict=True):
        for name in set(a.row) - TIMES - ignored:
            assert a.row[name] == b.row[name], f"{place(a.row)}: {name}"
        assert set(a.arrays) == set(b.arrays)
        for name in a.arrays:
            assert np.array_equal(a.arrays[name], b.arrays[name]), f"{place(a.row)}: {name}"


def replayed(*arrays, **more):
    """Runs `kvreplay.replay` on two threads; no cell may fail."""
    run = kvreplay.replay(*arrays, **{"jobs": 2, "progress": False, **more})
    assert not run.failures(), run.failures()[0]
    return run


def run_python(code, *words, timeout=60, check=True):
    """Runs code in a new Python process that finds the packages of this checkout."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(ROOMS)},
    )
