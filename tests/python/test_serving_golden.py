"""How engines evict, and methods beside it, against recorded expectations (tests/golden/README.md)."""

import json
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from kvreplay_cli import BINARY
from token_lists import ragged

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/serving_dev.h5"
COLUMNS = ("resident_pages", "resident_pages_peak", "reclaimed_bytes", "fragmentation", "key_floats")
OUTPUT_TOLERANCE = 1e-5  # relative to the largest expected magnitude; expectations are stored in float32
COLUMN_TOLERANCE = 1e-9


def keys():
    with h5py.File(GOLDEN) as f:
        return [(case, key) for case, group in f["cases"].items() for key in group["results"]]


def rope_of(case):
    a = case.attrs
    return {
        "type": "default",
        "theta": float(a["rope_theta"]),
        "inv_freq": case["rope_inv_freq"][:].tolist(),
        "layout": str(a["rope_layout"]),
        "rotary_dims": int(a["rotary_dims"]),
        "attention_factor": float(a["rope_attention_factor"]),
    }


def write_trace(path, case, others):
    """The case as a trace of one prompt `p0`; others: with the prompt `p1` for calibration."""
    prompts = {"p0": ("q", "k", "v"), **({"p1": ("q1", "k1", "v1")} if others else {})}
    with h5py.File(path, "w") as f:
        f.attrs.update(kvreplay_schema=1, n_layers=30, rope_json=json.dumps(rope_of(case)))
        for prompt, names in prompts.items():
            layer = f.create_group(f"prompts/{prompt}/layers/001")
            layer.attrs.update(scaling=float(case.attrs["scale"]), rotary_dims=int(case.attrs["rotary_dims"]))
            for x, name in zip("qkv", names, strict=True):
                layer[x] = case[name][:].astype(np.float32)
        add_passes(f["prompts/p0"], case)


def add_passes(prompt, case):
    """The output projection and the pass that repeats the prompt."""
    rows, ctx = case["repeat_rows"][:].astype(np.int32), case["repeat_ctx"][:].astype(np.int32)
    for name in ("o_proj", "repeat_q", "repeat_k"):
        prompt["layers/001"][name] = case[name][:].astype(np.float32)
    prompt["layers/001/repeat_in_norm"] = np.ones(rows[-1], np.float32)
    repeat = prompt.create_group("repeat")
    repeat["tokens"], repeat["rows"], repeat["ctx"] = np.zeros(rows[-1], np.int32), rows, ctx
    repeat.attrs.update(
        context_tokens=int(ctx[-1]), prompt_first="", prompt_next="", suffix="", prev_tokens=8
    )


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    with h5py.File(GOLDEN) as f:
        for case, group in f["cases"].items():
            write_trace(folder / f"{case}.h5", group, others=False)
            write_trace(folder / f"{case}-two.h5", group, others=True)
    return folder


def entry_of(result, folder, name):
    """The entry of `methods:` that asks for a result, with its file of uniforms if it draws."""
    entry = json.loads(result.attrs["method"])
    if "u" not in result:
        return entry
    entry["uniforms"] = f"{name}-u.h5"
    with h5py.File(folder / entry["uniforms"], "w") as f:
        for head, u in enumerate(result["u"]):
            f[f"p0/001/{head}/u"] = u.astype(float).ravel()
    return entry


def run(folder, name, entry, budget, prompt):
    other = entry.get("calibration") == "prompt:p1"
    if budget and "tokens" in budget:
        budget = {"tokens": [budget["tokens"]]}
    config = {
        "schema": 1,
        "traces": [f"{name.split('-')[0]}{'-two' if other else ''}.h5"],
        "select": {"prompts": ["p0"]},
        "replay": {"prefill": prompt},
        "methods": [entry],
        "seeds": {"count": 1},
        "run": {"precision": "double"},
        "output": {"dir": f"out-{name}", "save": ["kept", "outputs"]},
    }
    if budget:
        config["budget"] = budget
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [BINARY, "run", f"{name}.yaml", "--progress", "none"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
    out = folder / f"out-{name}"
    return pd.read_csv(out / "results.csv").sort_values("kv_head"), out / "kept.h5"


@pytest.mark.parametrize(("case", "key"), keys())
def test_sets_outputs_and_pages_are_those_recorded(traces, case, key):
    with h5py.File(GOLDEN) as f:
        group = f["cases"][case]
        result, a = group["results"][key], group.attrs
        n, P, G = int(a["n"]), int(a["P"]), int(a["G"])
        name = f"{case}-{key}"
        rows, kept = run(traces, name, entry_of(result, traces, name), json.loads(result.attrs["budget"]), P)
        recorded = ragged(result, "kept")
        per_head = 1 if result.attrs["oneshot"] else n - P
        with h5py.File(kept) as held:
            for head, (_, row) in enumerate(rows.iterrows()):
                want = recorded[head * per_head : (head + 1) * per_head]
                found = lists_of(held[row.key], P, n - P)
                if result.attrs["oneshot"]:  # later tokens all stay
                    want = [np.append(want[0], np.arange(P, t)) for t in range(P, n)]
                for step, (one, expected) in enumerate(zip(found, want, strict=True)):
                    assert np.array_equal(one, expected), f"head {head}, step {step}"
                for column in COLUMNS:
                    if column in result.attrs:
                        assert row[column] == pytest.approx(
                            result.attrs[column][head], rel=COLUMN_TOLERANCE
                        ), column
                if "out" in result:
                    same_outputs(
                        kept.with_name("outputs.h5"),
                        row.key,
                        result["out"][head * G : head * G + G].astype(float),
                    )


def lists_of(held, prompt, steps):
    """The sets after the prompt and after each step but the last."""
    lists = ragged(held, "kept")
    if held.attrs.get("oneshot", 0):
        return [np.append(lists[0], np.arange(prompt, prompt + i)) for i in range(steps)]
    return lists[:steps]


def same_outputs(path, key, want):
    with h5py.File(path) as f:
        out = f[key]["out"][:].astype(float)
    scale = np.abs(want).max(axis=-1, keepdims=True)
    assert out.shape == want.shape
    assert (np.abs(out - want) <= OUTPUT_TOLERANCE * scale).all()
