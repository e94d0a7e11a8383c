"""Calling the real binary: KVREPLAY names it, default build/release/kvreplay."""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("KVREPLAY", ROOT / "build" / "release" / "kvreplay")).resolve()
# Where a Python of its own finds the packages of this checkout.
ROOMS = [str(ROOT / room) for room in ("apps", "analysis", "traces", "tests/python")]
# The program with one more method and the emulator of devices.
TOY = BINARY.parent / "tests" / "kvreplay_toy"
# Started by a process as large as a test run, a program would seem to be as large itself.
CHARGE = ROOT / "tests" / "bench" / "sidebyside" / "charge.py"
TIMES = {"select_s", "attend_s"}  # of a run, left out of every comparison


def kvreplay(*words, cwd=None, timeout=120, program=BINARY, **environment):
    """Runs the binary to its end; the result has returncode, stdout and stderr as text."""
    return subprocess.run(
        [str(program), *map(str, words)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )


@dataclass
class Ended:
    """What a process left: exit code (negative: a signal), output, seconds, largest resident memory."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    rss_bytes: int


def kvreplay_measured(*words, limit_s, cwd=None):
    """Runs the binary to its end, or kills it after `limit_s` seconds with subprocess.TimeoutExpired."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHARGE), str(report), str(BINARY), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            start_new_session=True,
        )
        try:
            printed = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        used = json.loads(report.read_text())
    return Ended(used["code"], *printed, used["wall_s"], used["rss_kib"] * 1024)


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


def replayed(trace, out, *words):
    """The table of a run that must succeed."""
    result = kvreplay("run", trace, *words, "-o", out)
    assert result.returncode == 0, result.stderr
    return table(out)


def published(out):
    """Cells that are on disk: complete lines of the shards."""
    return sum(text.count("\n") for text in (p.read_text() for p in Path(out).glob("shards/*.jsonl")))
