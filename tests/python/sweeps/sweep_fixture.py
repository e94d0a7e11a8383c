"""A sweep of 200 cells over a synthetic trace, and its table in a form for comparing runs."""

import csv
import hashlib
import io
import json
import time
from pathlib import Path

import h5py
import numpy as np
from kvreplay_cli import TIMES, kvreplay, start, synth

CELLS = 200
WAIT_S = 60
CONFIG = """\
schema: 1
name: two-hundred
traces: [{trace}]
methods: [h2o, snapkv, streaming_llm, uniform]
budget: {{tokens: [64, 128]}}
seeds: {{count: 2}}
"""


def make_trace(path, tokens=768, layers=5, seed=0):
    """A trace with four kv heads per layer; CONFIG has 10 cells per head."""
    return synth(
        path,
        *["--tokens", tokens, "--prompt", tokens // 2, "--layers", layers, "--seed", seed],
        *["--q-heads", 8, "--kv-heads", 4],
    )


def write_config(folder, trace, more=""):
    file = Path(folder) / "sweep.yaml"
    file.write_text(CONFIG.format(trace=trace) + more)
    return file


def plan(config, out, *words, cwd=None):
    result = kvreplay("sweep", "plan", config, "-o", out, *words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def table_of_one_run(trace, folder):
    """The table that every sweep of CONFIG must produce."""
    result = kvreplay("run", write_config(folder, trace), "-o", Path(folder) / "out")
    assert result.returncode == 0, result.stderr
    return comparable(Path(folder) / "out")


def planned(trace, folder):
    """Plans a sweep of CONFIG; returns its directory, without any results."""
    plan(write_config(folder, trace), Path(folder) / "out")
    return Path(folder) / "out"


def work(out, shard, *words, **environment):
    return kvreplay(
        "sweep", "work", out, "--shard", shard, "-j", 1, "--progress", "none", *words, **environment
    )


def merge(out, *words):
    return kvreplay("sweep", "merge", out, *words)


def status(out):
    result = kvreplay("sweep", "status", out, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def comparable(out):
    """results.csv as bytes, without the columns that measure the run, and with sorted rows."""
    with (Path(out) / "results.csv").open(newline="") as file:
        rows = [[v for k, v in row.items() if k not in TIMES] for row in csv.DictReader(file)]
    text = io.StringIO()
    csv.writer(text).writerows(sorted(rows))
    return text.getvalue().encode()


def lines(out, folder="shards"):
    """The lines of all shards, as JSON."""
    files = sorted(Path(out).glob(f"{folder}/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def rewritten(line, **changed):
    """The line with changed members and a matching checksum."""
    members = {k: v for k, v in line.items() if k != "sum"} | changed
    first = {k: members.pop(k) for k in ("key", "status", "build") if k in members}
    text = json.dumps(first | members, separators=(",", ":"))[1:-1]
    return f'{{"sum":"{hashlib.sha256(text.encode()).hexdigest()[:16]}",{text}}}'


def started_worker(out, *words):
    return start("sweep", "work", out, "-j", 1, "--progress", "none", *words)


def wait_for_cells(out, count, process):
    until = time.monotonic() + WAIT_S
    while status(out)["ok"] < count and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


def damage(trace, layer, kv_head):
    """Writes a NaN into the keys, as a broken disk might."""
    with h5py.File(trace, "r+") as file:
        keys = file[f"prompts/synthetic/layers/{layer:03}/k"]
        tokens = keys[kv_head]
        tokens[5] = np.nan
        keys[kv_head] = tokens
