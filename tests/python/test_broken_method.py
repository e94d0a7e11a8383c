"""A method that breaks its promise fails its own cells, with the reason, and no others."""

import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
BINARY = Path(os.environ.get("KVREPLAY", ROOT / "build/release/kvreplay"))
BROKEN = BINARY.parent / "tests/kvreplay_broken"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.h5"
    subprocess.run(
        [BROKEN, "synth", "-o", path, "--tokens", "96", "--prompt", "64", "--layers", "3"], check=True
    )
    return path


def run(trace, out, *words):
    command = [BROKEN, "run", trace, "--method", "hoards,h2o", "--budget", "16", "-o", out, "-j", "1"]
    done = subprocess.run([*command, "--progress", "none", *words], capture_output=True, text=True)
    return done, pd.read_csv(out / "results.csv")


def test_cells_of_a_broken_method_fail_and_the_others_are_whole(trace, tmp_path):
    done, rows = run(trace, tmp_path / "out")
    assert done.returncode == 1
    assert "hoards" in done.stderr and "more than its budget of 16" in done.stderr
    broken, sound = rows[rows.method == "hoards"], rows[rows.method == "h2o"]
    assert (broken.status == "failed").all() and broken.error.str.contains("holds 64 tokens").all()
    assert broken.rel_err_out_mean.isna().all()
    assert (sound.status == "ok").all() and len(sound) == len(broken) == 9


def test_failed_cells_are_tried_again_and_finished_ones_are_not(trace, tmp_path):
    run(trace, tmp_path / "out")
    done, rows = run(trace, tmp_path / "out")
    assert done.returncode == 1
    assert "18 cells, 9 done before" in done.stderr
    assert len(rows) == 18


def test_fail_fast_stops_early(trace, tmp_path):
    done, rows = run(trace, tmp_path / "out", "--fail-fast")
    assert done.returncode == 1
    assert len(rows) < 18
