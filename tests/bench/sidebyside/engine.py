"""The engine as a user starts it: `kvreplay run` on one thread, charged from start to end."""

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from . import child
from .errors import Lack

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "configs/bench"
CONTEST = ("decode", "last")  # files of CONFIGS that exist are replayed, in this order
LAST = "last"  # the configuration that cuts all but the last tokens


@dataclass(frozen=True)
class Subject:
    """The input of both sides. Budgets, prefill, last and tokens are numbers of tokens."""

    trace: Path
    prompt: str
    layers: tuple
    tokens: int
    prefill: int
    last: int
    budgets: tuple


@dataclass(frozen=True)
class Run:
    """One `kvreplay run`: its cost, its rows of results.csv, the instruction set that it chose."""

    spent: child.Spent
    rows: list
    isa: str


def contest_configs():
    """{name: configuration as read}."""
    files = {name: CONFIGS / f"{name}.yaml" for name in CONTEST}
    return {name: yaml.safe_load(file.read_text()) for name, file in files.items() if file.is_file()}


def method_name(method):
    """Name of an entry of a configuration's `methods`."""
    return method if isinstance(method, str) else method["name"]


def settings(subject, config):
    """KEY=VALUE overrides that point a configuration of the contest at this subject."""
    prefill = subject.tokens - subject.last if config == LAST else subject.prefill
    return [
        f"traces={json.dumps([str(subject.trace.resolve())])}",
        f"select.layers={list(subject.layers)}",
        f"select.prompts={json.dumps([subject.prompt])}",
        f"replay.tokens={subject.tokens}",
        f"replay.prefill={prefill}",
        f"budget.tokens={list(subject.budgets)}",
    ]


class Engine:
    """A binary, and the folder of its runs."""

    def __init__(self, binary, out, isa="", device="cpu"):
        self.binary, self.out, self.isa, self.device = Path(binary), Path(out), isa, device
        if not self.binary.is_file():
            raise Lack(
                f"{binary}: no such program. Build it: cmake --preset test && cmake --build build/release "
                "--target kvreplay_program kvreplay_bench"
            )

    def forced(self):
        return {"KVREPLAY_ISA": self.isa} if self.isa else {}

    def environment(self):
        """Environment for one thread, with the requested instruction set."""
        return os.environ | child.QUIET | self.forced()

    def call(self, *words):
        return child.run([self.binary, *words], **self.forced())

    def folder(self, config):
        where = self.isa or "auto" if self.device == "cpu" else self.device.replace(":", "")
        return self.out / "runs" / f"{where}-{Path(config).name}"

    def words(self, config, overrides, jobs=1):
        """Arguments of `kvreplay run` of configs/bench/CONFIG.yaml."""
        words = [
            "run",
            CONFIGS / f"{config}.yaml",
            "-o",
            self.folder(config),
            "-j",
            jobs,
            "--force",
            "-q",
            "--progress",
            "none",
            "--device",
            self.device,
        ]
        for override in overrides:
            words += ["-s", override]
        return words

    def replay(self, config, overrides, jobs=1):
        out = self.folder(config)
        spent = self.call(*self.words(config, overrides, jobs))
        with (out / "results.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return Run(spent, rows, self.chosen(config))

    def chosen(self, config):
        """The instruction set of the last run of a configuration."""
        return json.loads((self.folder(config) / "results.meta.json").read_text())["isa"]

    def require_bench_program(self):
        """Raises Lack before the rounds if the program that `kvreplay bench` starts is missing."""
        self.call("bench", "--version")

    def version(self):
        """Version of the program, with commit and compiler."""
        return self.call("--version").stdout.strip()

    def inspect(self, trace):
        """The first prompt of a trace: (id, tokens, layers that it holds)."""
        held = json.loads(self.call("inspect", trace, "--json").stdout)
        first = min(held["prompts"], key=lambda prompt: prompt["id"])
        return first["id"], first["tokens"], [layer["layer"] for layer in first["layers"]]


def select_and_attend_s(rows):
    """{method: seconds} that the run spent on caches alone, by its own clock (wall time of its thread)."""
    found = {}
    for row in rows:
        seconds = float(row["select_s"]) + float(row["attend_s"])
        found[row["method"]] = found.get(row["method"], 0.0) + seconds
    return found


def mean_errors(rows):
    """{(method, budget): {rel, eps}}: means over kv heads, which are means over query heads."""
    sums = {}
    for row in rows:
        cell = sums.setdefault((row["method"], int(row["budget_tokens"])), [])
        cell.append((float(row["rel_err_out_mean"]), float(row["eps_frobenius_mean"])))
    return {
        key: {
            "rel": sum(rel for rel, _ in cells) / len(cells),
            "eps": sum(eps for _, eps in cells) / len(cells),
        }
        for key, cells in sums.items()
    }
