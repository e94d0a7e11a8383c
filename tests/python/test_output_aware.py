"""Wrappers and budget curves in configurations: refusals with their messages, and kept sets of a run."""

import json

import h5py
import numpy as np
import pytest
import yaml
from engine_cases_tier2 import TRACES, layers_of, write_trace
from kvreplay_cli import kvreplay, table
from reference.budgets import lu_kv_budgets
from reference.snapkv import snapkv_scores

B, WINDOW = 41, 8
SNAP = {"name": "snapkv", "window": WINDOW, "kernel": 5}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.h5"
    write_trace(path, "g3")
    return path


def config(trace, methods, **more):
    return yaml.safe_dump(
        {"schema": 1, "traces": [str(trace)], "methods": methods, "budget": {"tokens": [B]}, **more}
    )


def told(trace, method):
    """The message of `kvreplay validate` for one method."""
    file = trace.parent / "told.yaml"
    file.write_text(config(trace, [method]))
    done = kvreplay("validate", file)
    assert done.returncode == 2, done.stdout
    return done.stderr


REFUSED = [
    ({**SNAP, "wrapper": "critical"}, "record it with `kvreplay record --with-output`"),
    ({"name": "kvzip"}, "record it with `kvreplay record --repeat`"),
    ({"name": "knorm", "phase": "oneshot", "wrapper": "caote"}, "wrapper needs attention scores"),
    ({"name": "tova", "wrapper": "critical"}, "add phase: oneshot"),
    ({"name": "h2o", "variant": "hf_mask", "wrapper": "caote"}, "does something else: add phase: oneshot"),
    ({"name": "pyramidkv", "wrapper": "caote"}, "take snapkv with an allocator"),
    ({**SNAP, "wrapper": "caote", "gqa.level": "layer"}, "leave out gqa.level: layer"),
    ({**SNAP, "wrapper": {"name": "caote", "alpha": 0.5}}, "alpha"),
    ({**SNAP, "wrapper": {"name": "critical", "alpha": 2}}, "alpha is 2 and must be"),
    ({**SNAP, "wrapper": "critikal"}, "critical"),
    ({**SNAP, "allocator": {"name": "pyramid"}}, "must be a word"),
    ({"name": "window", "allocator": {"name": "lu_kv", "calibration": "self"}}, "allocator lu_kv"),
    ({"name": "rkv", "buffer": 40, "buffer_in_budget": True}, "leave nothing of the budget of 41"),
    ({"name": "triattention", "sinks": 30, "recent": 11}, "leave nothing of the budget of 41"),
    ({"name": "pqcache", "sinks": 2, "subvectors": 5}, "do not divide"),
]


@pytest.mark.parametrize(("method", "words"), REFUSED, ids=[json.dumps(m) for m, _ in REFUSED])
def test_a_combination_without_a_meaning_is_refused_with_the_remedy(trace, method, words):
    assert words in told(trace, method)


def test_a_wrapper_may_be_swept_and_is_part_of_the_key(trace, tmp_path):
    file = tmp_path / "sweep.yaml"
    wrappers = ["none", "caote", {"name": "caote", "level": "kv"}, {"name": "caote", "fast": True}]
    file.write_text(config(trace, [{**SNAP, "wrapper": wrappers}], output={"dir": str(tmp_path / "out")}))
    assert kvreplay("run", file, "--progress", "none").returncode == 0
    rows = table(tmp_path / "out")
    assert len({row["key"] for row in rows}) == len(rows) == 4 * len(layers_of("g3")) * TRACES["g3"].kv_heads
    shown = [json.loads(row["params"]).get("wrapper") for row in rows]
    assert shown.count(None) == len(rows) / 4
    assert {"name": "caote", "level": "kv", "fast": False} in shown


def test_lu_kv_shares_a_models_budget_by_its_curves(trace, tmp_path):
    file = tmp_path / "lu.yaml"
    method = {**SNAP, "allocator": {"name": "lu_kv", "calibration": "self"}}
    output = {"dir": str(tmp_path / "out"), "save": ["kept"]}
    file.write_text(config(trace, [method], output=output, run={"precision": "double"}))
    assert kvreplay("run", file, "--progress", "none").returncode == 0
    heads = [head for layer in layers_of("g3") for head in layer]
    protected = np.arange(heads[0].P) >= heads[0].P - WINDOW
    votes = [snapkv_scores(h, WINDOW, 5, "max", "sum", "before") for h in heads]
    scores = [np.append(v, np.zeros(WINDOW)) for v in votes]
    wanted = dict(
        zip([(h.layer, h.kv_head) for h in heads], lu_kv_budgets(heads, scores, protected, B), strict=True)
    )
    with h5py.File(tmp_path / "out/kept.h5") as f:
        for row in table(tmp_path / "out"):
            kept = f[row["key"]]["kept_off"][1]
            assert kept == wanted[int(row["layer"]), int(row["kv_head"])]
    assert sum(wanted.values()) == B * len(heads)
