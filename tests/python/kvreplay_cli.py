"""Calling the real binary: KVREPLAY names it, default build/release/kvreplay."""

import csv
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("KVREPLAY", ROOT / "build" / "release" / "kvreplay")).resolve()
TIMES = {"select_s", "attend_s"}  # of a run, left out of every comparison


def kvreplay(*words, cwd=None, timeout=120, **environment):
    """Runs the binary to its end; the result has returncode, stdout and stderr as text."""
    return subprocess.run(
        [str(BINARY), *map(str, words)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )


def start(*words, cwd=None):
    """Starts the binary without waiting."""
    return subprocess.Popen(
        [str(BINARY), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
    )


def synth(path, *words):
    result = kvreplay("synth", "-o", path, *words)
    assert result.returncode == 0, result.stderr
    return path


def table(out):
    """Rows of results.csv without the times, sorted by key."""
    with (Path(out) / "results.csv").open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: row["key"])


def published(out):
    """Cells that are on disk: complete lines of the shards."""
    return sum(text.count("\n") for text in (p.read_text() for p in Path(out).glob("shards/*.jsonl")))
