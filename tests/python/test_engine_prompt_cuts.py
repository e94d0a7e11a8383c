"""Cuts that heads, layers or the model make together, against the numpy definitions."""

from functools import cache

import h5py
import numpy as np
import pytest
import yaml
from engine_cases_later_methods import layers_of, write_files
from engine_cases_tier2 import SNAP, Case, per_head, per_layer
from engine_runs import Runs, parameters
from kvreplay_cli import BINARY, kvreplay, table
from reference import prompt_cuts
from reference.repeat_scores import Repeat
from token_lists import ragged

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

TRACES = ("smooth", "long", "widths")
BUDGETS = {"smooth": (41, 64), "long": (41, 120), "widths": (17, 30)}
ROWS = 13  # rows that repeat the context
CHUNKS = (0, 7, ROWS)


@cache
def repeats_of(trace):
    rng = np.random.default_rng(7)
    return [
        [
            Repeat(*(rng.normal(size=shape).astype(np.float32).astype(float) for shape in shapes), CHUNKS, ())
            for h in heads
            for shapes in [((h.G, ROWS, h.d), (ROWS, h.d))]
        ]
        for heads in layers_of(trace)
    ]


def write(folder, trace):
    write_files(folder, trace)
    P = layers_of(trace)[0][0].P
    with h5py.File(folder / "t.h5", "r+") as f:
        pass_ = f.create_group("prompts/p0/repeat")
        pass_.attrs.update({"context_tokens": P, "prompt_first": "", "prompt_next": "", "suffix": ""})
        pass_["tokens"] = np.zeros(ROWS, dtype=np.int32)
        pass_["rows"] = np.array(CHUNKS, dtype=np.int32)
        pass_["ctx"] = np.array([0, P // 2, P], dtype=np.int32)
        for heads, own in zip(layers_of(trace), repeats_of(trace), strict=True):
            group = f[f"prompts/p0/layers/{heads[0].layer:03}"]
            group["repeat_q"] = np.concatenate([r.q for r in own]).astype(np.float32)
            group["repeat_k"] = np.stack([r.k for r in own]).astype(np.float32)


def on_all(entry, reference, traces=TRACES):
    return [Case(entry, reference, (trace,), BUDGETS[trace]) for trace in traces]


def model(name, method, traces=TRACES, **o):
    """A case of a method that decides for all layers."""
    return on_all({"name": name, **o}, lambda layers, B: method(layers, B, **o), traces)


def layer(name, method, **o):
    return on_all({"name": name, **o}, per_layer(method, **o))


def composed(**o):
    def reference(layers, B):
        trace = next(t for t in TRACES if layers_of(t) is layers)
        return prompt_cuts.kvcompose(layers, repeats_of(trace), B, **o)

    return on_all({"name": "kvcompose", **o}, reference)


def zigzag(**o):
    entry = {**SNAP, "allocator": {"name": "zigzag", **o}}
    snap = {name: SNAP[name] for name in ("window", "kernel", "pool")}
    return on_all(entry, lambda layers, B: prompt_cuts.zigzag(layers, B, **o, **snap))


def exact_keys(**o):
    return on_all({"name": "leverage", "sketch": 0, **o}, per_head(prompt_cuts.leverage, **o))


defensive, lava = prompt_cuts.defensivekv, prompt_cuts.lava
CASES = [
    *exact_keys(),
    *exact_keys(sinks=3, recent=5),
    *model("defensivekv", defensive, window=6),
    *model("defensivekv", defensive, window=6, kernel=3, mass=0.4),
    *model("defensivekv", defensive, window=9, kernel=1, mass=1.0),
    *model("defensivekv", defensive, window=6, level="model"),
    *model("defensivekv", defensive, window=6, mass=0.3, kernel=7, level="model"),
    *composed(),
    *composed(structured=False),
    *composed(structured=False, mean_heads=False),
    *composed(vnorm=True, rows="mean"),
    *composed(mean_heads=False),
    *model("lava", lava, window=6),
    *model("lava", lava, window=9, kernel=3, floor=0.0),
    *model("lava", lava, window=4, kernel=1, floor=0.7),
    *layer("simlayerkv", prompt_cuts.simlayerkv, sinks=3, recent=9, threshold=0.1),
    *layer("simlayerkv", prompt_cuts.simlayerkv, sinks=3, recent=9, threshold=0.15, last=4),
    *layer("simlayerkv", prompt_cuts.simlayerkv, sinks=2, recent=12, threshold=0.12, phase="oneshot"),
    *zigzag(),
    *zigzag(mass=0.5),
    *zigzag(mass=0.7, lo=17),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("engine"), CASES, write)


@pytest.mark.parametrize("case,trace", parameters(CASES))
def test_the_engine_agrees_with_the_definition(runs, case, trace):
    runs.check(case, trace, layers_of(trace))


def test_lava_reports_what_rounding_adds(tmp_path):
    write(tmp_path, "smooth")
    config = {
        "schema": 1,
        "traces": ["t.h5"],
        "methods": [{"name": "lava", "window": 5, "floor": 0.7}],
        "budget": {"tokens": [41]},
        "output": {"dir": "out", "save": ["kept"]},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    assert kvreplay("run", tmp_path / "run.yaml").returncode == 0
    rows = table(tmp_path / "out")
    with h5py.File(tmp_path / "out/kept.h5") as f:
        held = sum(len(ragged(f[row["key"]], "kept")[0]) for row in rows)
    excess = {yaml.safe_load(row["extras"])["allocated_excess"] for row in rows}
    assert excess == {held - 41 * len(rows)} and excess != {0}


def validated(folder, entry):
    config = {
        "schema": 1,
        "traces": ["t.h5"],
        "methods": [entry],
        "budget": {"tokens": [41]},
        "output": {"dir": "out"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return kvreplay("validate", folder / "run.yaml")


REFUSED = [
    ({"name": "defensivekv", "window": 50}, "window 50 exceeds the budget of 41"),
    ({"name": "lava", "window": 50}, "window 50 exceeds the budget of 41"),
    ({"name": "lava", "kernel": 4}, "kernel 4 must be odd"),
    ({"name": "kvcompose", "gqa": {"level": "query"}}, "compares kv heads, and with gqa.level: query"),
    ({"name": "defensivekv", "allocator": "ada"}, "leave out allocator"),
    ({"name": "simlayerkv", "allocator": "pyramid"}, "leave out allocator"),
    ({"name": "knorm", "phase": "oneshot", "allocator": "zigzag"}, "scores by something else"),
]


@pytest.mark.parametrize(("entry", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_has_no_meaning_is_refused_with_the_reason(tmp_path, entry, said):
    write(tmp_path, "smooth")
    done = validated(tmp_path, entry)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(("name", "flag"), [("defensivekv", "--with-output"), ("kvcompose", "--repeat")])
def test_a_trace_without_the_needed_pass_is_refused_with_the_flag(tmp_path, name, flag):
    write(tmp_path, "smooth")
    with h5py.File(tmp_path / "t.h5", "r+") as f:
        del f["prompts/p0/repeat"]
        for group in f["prompts/p0/layers"].values():
            for lost in ("o_proj", "repeat_q", "repeat_k"):
                del group[lost]
    done = validated(tmp_path, name)
    assert done.returncode == 2
    assert flag in done.stderr
