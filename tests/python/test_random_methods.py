"""Means of random methods: the engine's seeds against other seeds of the independent reference."""

import math

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from kvreplay_cli import BINARY, kvreplay
from reference.balance import balancekv, balancekv_stream, uniform
from reference.common import exact_out
from reference.heads import SHAPES, heads, write_trace

SEEDS = 60
BUDGET = 43
Z = 3.2905  # 99.9 % of a normal: correct engine and reference disagree for one in 1000 choices of seeds

CASES = [
    (uniform, {}),
    (uniform, {"weights": "none"}),
    (balancekv, {"block": 16}),
    (balancekv, {"block": 16, "den": "w"}),
    (balancekv, {"block": 16, "gamma": 0.02}),
    (balancekv, {"block": 16, "gamma": 0.0}),
]

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


def run(folder, trace, shape, entry):
    config = {
        "schema": 1,
        "traces": [str(trace)],
        "replay": {"prefill": shape.P},
        "methods": [entry],
        "budget": {"tokens": [BUDGET]},
        "seeds": {"first": 0, "count": SEEDS},
        "run": {"precision": "double"},
        "output": {"dir": str(folder / "out"), "save": ["outputs"]},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return kvreplay("run", path, "--force", "--progress", "none")


def engine_errors(folder, trace, shape, entry):
    done = run(folder, trace, shape, entry)
    assert done.returncode == 0, done.stderr
    return pd.read_csv(folder / "out/results.csv").rel_err_out_mean.to_numpy()


def relative_errors(head, out):
    exact = exact_out(head)
    return (np.linalg.norm(out - exact, axis=-1) / np.linalg.norm(exact, axis=-1)).mean()


@pytest.mark.parametrize("method,params", CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_the_mean_error_over_seeds_is_the_references(tmp_path, method, params):
    shape = SHAPES["single"]
    write_trace(tmp_path / "t.h5", shape)
    (head,) = heads(shape).values()
    ours = engine_errors(tmp_path, tmp_path / "t.h5", shape, {"name": method.__name__, **params})
    theirs = np.array(
        [relative_errors(head, method(head, BUDGET, seed=1000 + s, **params).out) for s in range(SEEDS)]
    )
    assert len(ours) == SEEDS
    assert len(np.unique(ours)) > 5  # with a strong pull few runs differ
    half = Z * math.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / SEEDS)
    assert abs(ours.mean() - theirs.mean()) <= half
    assert half < 0.25 * theirs.mean()  # the comparison is informative


def test_balancekv_stream_refuses_soft_capped_layers(tmp_path):
    write_trace(tmp_path / "t.h5", SHAPES["short"])
    with h5py.File(tmp_path / "t.h5", "r+") as f:
        f["prompts/a/layers/000"].attrs["softcap"] = 30.0
    done = kvreplay("run", tmp_path / "t.h5", "--method", "balancekv_stream", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "soft cap" in done.stderr


WALKS = {"batch": 16, "levels": 2, "c": 1e-3, "on_fail": "coin"}
SLOTS = 4096  # 0: the denominator; 2048 + i: the bucket of values up to 2^i


def write_uniforms(path, shape, seed):
    U = np.random.default_rng(seed).random(shape)
    with h5py.File(path, "w") as file:
        file["U"] = U
    return U


@pytest.mark.parametrize("seed", [1, 2])
def test_balancekv_stream_draws_from_a_file_of_uniforms(tmp_path, seed):
    shape = SHAPES["short"]
    write_trace(tmp_path / "t.h5", shape)
    U = write_uniforms(tmp_path / "u.h5", (WALKS["levels"], shape.n, SLOTS), seed)
    entry = {"name": "balancekv_stream", **WALKS, "uniforms": str(tmp_path / "u.h5")}
    done = run(tmp_path, tmp_path / "t.h5", shape, entry)
    assert done.returncode == 0, done.stderr
    (row,) = pd.read_csv(tmp_path / "out/results.csv").itertuples()  # one row for any number of seeds
    (head,) = heads(shape).values()
    want = balancekv_stream(head, **WALKS, U=U).out
    with h5py.File(tmp_path / "out/outputs.h5") as file:
        assert np.abs(file[row.key]["out"][:] - want).max() <= 1e-8 * np.abs(want).max()
    counted = balancekv_stream(head, **WALKS).out
    assert np.abs(counted - want).max() > 1e-3 * np.abs(want).max(), "the draws have no effect"


def test_balancekv_stream_refuses_too_few_uniforms(tmp_path):
    shape = SHAPES["short"]
    write_trace(tmp_path / "t.h5", shape)
    write_uniforms(tmp_path / "u.h5", (WALKS["levels"], shape.n, 100), 1)
    entry = {"name": "balancekv_stream", **WALKS, "uniforms": str(tmp_path / "u.h5")}
    done = run(tmp_path, tmp_path / "t.h5", shape, entry)
    assert done.returncode == 2
    assert f"but 2 x {shape.n} x {SLOTS} are drawn" in done.stderr
