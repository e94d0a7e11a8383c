"""Costs of sweeps: 100,000 cells, and a worker against a plain run. Reported as warnings, not asserted."""

import statistics
import warnings

import pytest
from kvreplay_cli import ROOT, kvreplay_measured, synth
from sweep_fixture import comparable, status

pytestmark = pytest.mark.slow
SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
ROUNDS, LONGEST_S = 5, 1200
MANY = """\
schema: 1
name: many
traces: [t.h5]
methods: [streaming_llm, h2o, snapkv, window, tova, scissorhands, knorm, keydiff, buzz, h2o_heavy, keyformer,
          pyramidkv, uniform]
budget: {{tokens: {budgets}}}
seeds: {{count: 1}}
"""
REAL = """\
schema: 1
name: overhead
traces: [{trace}]
methods: [exact, h2o, tova, snapkv, streaming_llm, uniform, keyformer, buzz, subgen, quest]
budget: {{tokens: [64, 96, 128, 192, 256, 320]}}
seeds: {{count: 3}}
"""


def timed(*words, cwd):
    """(seconds, peak memory in MB) of one command."""
    done = kvreplay_measured(*words, limit_s=LONGEST_S, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.seconds, done.rss_bytes / 1e6


def report(text):
    warnings.warn(text, stacklevel=2)


def test_a_hundred_thousand_cells_are_planned_counted_and_merged(tmp_path):
    synth(
        tmp_path / "t.h5",
        *[
            "--tokens",
            "96",
            "--prompt",
            "64",
            "--layers",
            "32",
            "--q-heads",
            "8",
            "--kv-heads",
            "8",
            "--head-dim",
            "16",
        ],
    )
    (tmp_path / "many.yaml").write_text(MANY.format(budgets=list(range(34, 64))))
    out = tmp_path / "out"
    seconds, megabytes = timed("sweep", "plan", "many.yaml", "-o", out, cwd=tmp_path)
    cells = status(out)["cells"]
    report(f"plan of {cells} cells: {seconds:.1f} s, {megabytes:.0f} MB")
    for i in range(4):
        timed("sweep", "work", out, "--shard", f"{i}/4", "-q", "--progress", "none", cwd=tmp_path)
    assert status(out)["ok"] == cells == 99_840
    report(f"status: {timed('sweep', 'status', out, cwd=tmp_path)[0]:.1f} s")
    seconds, megabytes = timed("sweep", "merge", out, "-q", cwd=tmp_path)
    report(f"merge: {seconds:.1f} s, {megabytes:.0f} MB")


def test_a_worker_takes_as_long_as_a_run_of_the_same_cells(tmp_path):
    (tmp_path / "real.yaml").write_text(REAL.format(trace=SAMPLE))
    ratios = []
    for i in range(ROUNDS):
        run, out = tmp_path / f"run-{i}", tmp_path / f"work-{i}"
        timed("sweep", "plan", "real.yaml", "-o", out, cwd=tmp_path)
        quiet = ["-j", 1, "-q", "--progress", "none"]
        plain, _ = timed("run", "real.yaml", "-o", run, *quiet, cwd=tmp_path)
        worked, _ = timed("sweep", "work", out, *quiet, cwd=tmp_path)
        ratios.append(worked / plain)
        timed("sweep", "merge", out, "-q", cwd=tmp_path)
        assert comparable(out) == comparable(run)
    report(f"work / run: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
