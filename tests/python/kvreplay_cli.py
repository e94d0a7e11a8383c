"""Calls the real binary: the environment variable KVREPLAY, or build/release/kvreplay."""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import kvreplay as kv
from kvreplay.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("KVREPLAY", ROOT / "build" / "release" / "kvreplay")).resolve()
# Folders of this checkout's packages, for a separate Python process.
ROOMS = [str(ROOT / room) for room in ("lib/python", "apps", "analysis", "traces", "tests/python")]
# The program with one more method and the device emulator.
TOY = BINARY.parent / "tests" / "kvreplay_toy"
# A program started directly by a process as large as a test run would be measured as equally large.
CHARGE = ROOT / "tests" / "bench" / "sidebyside" / "charge.py"
TIMES = {"select_s", "attend_s"}  # times of a run, left out of every comparison


def command_of(words, program=BINARY):
    """The command line: the engine's program, or the Python front door for Python's verbs."""
    verb = next((str(word) for word in words if not str(word).startswith("-")), "")
    start = [sys.executable, "-m", "kvreplay"] if program == BINARY and verb in VERBS else [str(program)]
    return [*start, *map(str, words)]


def kvreplay(*words, cwd=None, timeout=120, program=BINARY, **environment):
    """Runs a command to its end; returns returncode, stdout and stderr (text)."""
    environment = {"KVREPLAY": str(BINARY), "PYTHONPATH": os.pathsep.join(ROOMS), **environment}
    return subprocess.run(
        command_of(words, program),
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
    """A finished process: exit code (negative: a signal), output, seconds, largest resident memory."""

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
    """Starts the binary without waiting for it."""
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
    """The number of cells on disk: complete lines of the shards."""
    return sum(text.count("\n") for text in (p.read_text() for p in Path(out).glob("shards/*.jsonl")))


def formats_of_heads():
    """Names of the row formats of keys and values; others are of latents."""
    return [name for name in kv.formats() if not kv.describe(name)["of_latents"]]
