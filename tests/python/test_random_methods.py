"""Random methods in the mean: the engine's seeds against other seeds of the independent reference."""

import math

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from kvreplay_cli import BINARY, kvreplay
from reference.balance import balancekv, uniform
from reference.common import exact_out
from reference.heads import SHAPES, heads, write_trace

SEEDS = 60
BUDGET = 43
Z = 3.2905  # 99.9 % of a normal: a right engine and a right reference disagree once in 1000 choices of seeds

CASES = [
    (uniform, {}),
    (uniform, {"weights": "none"}),
    (balancekv, {"block": 16}),
    (balancekv, {"block": 16, "den": "w"}),
    (balancekv, {"block": 16, "gamma": 0.02}),
    (balancekv, {"block": 16, "gamma": 0.0}),
]

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


def engine_errors(folder, trace, shape, entry):
    config = {
        "schema": 1,
        "traces": [str(trace)],
        "replay": {"prefill": shape.P},
        "methods": [entry],
        "budget": {"tokens": [BUDGET]},
        "seeds": {"first": 0, "count": SEEDS},
        "run": {"precision": "double"},
        "output": {"dir": str(folder / "out")},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    done = kvreplay("run", path, "--force", "--progress", "none")
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
    assert len(np.unique(ours)) > 5  # a strong pull leaves little to chance
    half = Z * math.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / SEEDS)
    assert abs(ours.mean() - theirs.mean()) <= half
    assert half < 0.25 * theirs.mean()  # the comparison says something


def test_balancekv_stream_refuses_soft_capped_layers(tmp_path):
    write_trace(tmp_path / "t.h5", SHAPES["short"])
    with h5py.File(tmp_path / "t.h5", "r+") as f:
        f["prompts/a/layers/000"].attrs["softcap"] = 30.0
    done = kvreplay("run", tmp_path / "t.h5", "--method", "balancekv_stream", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "soft cap" in done.stderr
