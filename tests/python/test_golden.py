"""The methods against recorded expectations (tests/golden/README.md): kept sets, outputs and measures."""

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("KVREPLAY", str(ROOT / "build/release/kvreplay"))
TINY_MARGIN = 1e-6  # decisions closer than this are not judged: another summation order may flip them
OUTPUT_TOLERANCE = 1e-5  # of the largest expected magnitude; the expectations are stored in float32
MEASURE_TOLERANCE = 1e-4

# golden key -> configuration, and {our parameter: attribute of the golden result}
ORACLE = {
    "window": ({"name": "window"}, {}),
    "sink": ({"name": "streaming_llm", "positions": "original"}, {"sinks": "sink"}),
    "sink_repos": ({"name": "streaming_llm"}, {"sinks": "sink"}),
    "h2o": ({"name": "h2o"}, {}),
    "snapkv_max": ({"name": "snapkv", "pool": "max"}, {"window": "window", "kernel": "kernel"}),
    "snapkv_avg": ({"name": "snapkv", "pool": "avg"}, {"window": "window", "kernel": "kernel"}),
    "uniform": ({"name": "uniform"}, {"sinks": "sink", "recent": "recent", "m": "m"}),
    "subgen_practical": ({"name": "subgen"}, {"recent": "recent"}),
    "subgen_practical_w": ({"name": "subgen", "weights": "cluster_size"}, {"recent": "recent"}),
    "topk_group": ({"name": "topk_oracle"}, {"extra": "extra"}),
    "topk_head": ({"name": "topk_oracle", "per_head": True}, {"extra": "extra"}),
}
MEASURES = {
    "rel_mean": "rel_err_out_mean",
    "rel_max": "rel_err_out_max",
    "fro": "rel_err_fro",
    "spectral": "eps_spectral_mean",
    "spectral_max": "eps_spectral_max",
    "balance": "eps_frobenius_mean",
    "balance_max": "eps_frobenius_max",
    "part_mean": "partition_err_mean",
    "part_max": "partition_err_max",
    "mass": "kept_mass_mean",
    "mass_recall": "mass_recall",
    "index_recall": "index_recall",
}


def golden(kind):
    return h5py.File(ROOT / f"tests/golden/{kind}_dev.h5")


def cases(kind):
    with golden(kind) as f:
        return list(f["cases"])


def write_trace(path, case, repeat_last=False):
    """A trace of one layer; with repeat_last one more token, so that there is a decode row."""
    q, k, v = (case[name][:] for name in "qkv")
    if repeat_last:
        q, k, v = (np.concatenate([x, x[:, -1:]], axis=1) for x in (q, k, v))
    d = q.shape[2]
    rope = {
        "type": "default",
        "theta": float(case.attrs["rope_theta"]),
        "layout": "half_split",
        "rotary_dims": d,
    }
    rope["inv_freq"] = (rope["theta"] ** (-np.arange(0, d, 2) / d)).tolist()
    with h5py.File(path, "w") as f:
        f.attrs["kvreplay_schema"] = 1
        f.attrs["rope_json"] = json.dumps(rope)
        number = 1
        if "n_layers" in case.attrs:  # budgets that differ from layer to layer
            f.attrs["n_layers"], number = int(case.attrs["n_layers"]), int(case.attrs["layer"])
        layer = f.create_group(f"prompts/p0/layers/{number:03}")
        layer.attrs["scaling"] = float(case.attrs["scale"])
        for name, x in zip("qkv", (q, k, v), strict=True):
            layer[name] = x


def run(folder, trace, prefill, method, budget):
    config = {
        "schema": 1,
        "traces": [str(trace)],
        "replay": {"prefill": int(prefill)},
        "methods": [method],
        "budget": {"tokens": [int(budget)]},
        "seeds": {"first": 0, "count": 1},
        "run": {"precision": "double"},
        "output": {"dir": str(folder / "out"), "save": ["kept", "curves", "outputs"]},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [BINARY, "run", path, "--force", "--progress", "none"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return pd.read_csv(folder / "out/results.csv"), folder / "out"


def ragged(group, name):
    flat, off = group[name + "_flat"][:], group[name + "_off"][:]
    return [flat[a:b] for a, b in pairwise(off)]


def decided_steps(margins):
    """How many leading lists are to be identical."""
    close = np.nonzero(margins < TINY_MARGIN)[0]
    return len(margins) if not len(close) else close[0]


@pytest.mark.parametrize("key", ORACLE)
@pytest.mark.parametrize("case", cases("oracle"))
def test_a_method_reproduces_the_oracle(tmp_path, case, key):
    fixed, names = ORACLE[key]
    with golden("oracle") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = {name: x.item() if hasattr(x, "item") else x for name, x in r.attrs.items()}
        prefill, n = int(c.attrs["P"]), int(c.attrs["n"])
        write_trace(tmp_path / "t.h5", c)
        method = fixed | {ours: a[theirs] for ours, theirs in names.items()}
        if "u" in r:
            with h5py.File(tmp_path / "u.h5", "w") as u:
                u["u"] = r["u"][:]
            method["uniforms"] = str(tmp_path / "u.h5")
        rows, out = run(
            tmp_path, tmp_path / "t.h5", prefill, method, a.get("B") or a["sink"] + a["recent"] + a["m"]
        )
        row = rows.iloc[0]
        margins = np.full(1 << 20, np.inf) if key == "snapkv_max" else r["margins"][:].ravel()
        if margins.min() >= TINY_MARGIN:
            for theirs, ours in MEASURES.items():
                if "metric_" + theirs in a:
                    assert row[ours] == pytest.approx(a["metric_" + theirs], rel=MEASURE_TOLERANCE), ours
        with h5py.File(out / "kept.h5") as kept:
            for name in ("kept", "attended"):
                if name + "_flat" not in r:
                    continue
                want, got = ragged(r, name), ragged(kept[row.key], name)
                if name == "kept" and len(got) == 1:
                    got = [np.append(got[0], np.arange(prefill, t)) for t in range(prefill, n + 1)]
                assert len(got) == len(want)
                for i in range(min(decided_steps(margins), len(want))):
                    assert np.array_equal(got[i], want[i]), f"{name} list {i}"
            if "weights" in r:
                first = len(ragged(kept[row.key], "kept")[0])
                assert np.allclose(kept[row.key]["num"][:first], r["weights"][:first])
        with h5py.File(out / "outputs.h5") as h, h5py.File(out / "curves.h5") as curves:
            at = np.searchsorted(h[row.key]["rows"][:], c["out_rows"][:])
            expected = r["out"][:]
            assert (
                np.abs(h[row.key]["out"][:][:, at] - expected).max()
                <= OUTPUT_TOLERANCE * np.abs(expected).max()
            )
            rel = r["rel"][:]
            assert np.abs(curves[row.key]["rel_err"][:] - rel).max() <= OUTPUT_TOLERANCE * rel.max()


REFERENCE = {
    "h2o_real_drop": lambda a: (
        {"name": "h2o", "heavy": a["heavy"], "recent": a["recent"]},
        a["heavy"] + a["recent"],
    ),
    "streaming_llm": lambda a: ({"name": "streaming_llm", "sinks": a["sink"]}, a["sink"] + a["recent"]),
}


def reference_keys():
    with golden("reference") as f:
        return [
            (c, k)
            for c, g in f["cases"].items()
            for k, r in g["results"].items()
            if r.attrs["method"] in REFERENCE
        ]


@pytest.mark.parametrize("case,key", reference_keys())
def test_a_method_reproduces_the_public_code(tmp_path, case, key):
    with golden("reference") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = {name: x.item() if hasattr(x, "item") else x for name, x in r.attrs.items()}
        write_trace(tmp_path / "t.h5", c)
        method, budget = REFERENCE[a["method"]](a)
        method["positions"] = {"reassign": "cache", "original": "original"}[a["rope"]]
        if a["granularity"] == "per_q_head":
            method["gqa.level"] = "query"
        rows, out = run(tmp_path, tmp_path / "t.h5", c.attrs["P"], method, budget)
        row = rows.iloc[0]
        assert row.peak_kept_tokens == a["peak_kept"]
        assert row.peak_attended_tokens == a["peak_attended"]
        assert row.rel_err_out_mean == pytest.approx(r["rel"][:].astype(float).mean(), rel=MEASURE_TOLERANCE)
        with h5py.File(out / "kept.h5") as kept:
            got, want = ragged(kept[row.key], "kept"), ragged(r, "kept")
        assert len(got) == len(want)
        for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            assert np.array_equal(mine, theirs), f"list {i}"


KVPRESS_SNAPKV = {"name": "snapkv", "variant": "kvpress"}
KVPRESS = {
    "snapkv": lambda a: {"name": "snapkv", "window": a["window"], "kernel": a["kernel"], "pool": a["pool"]},
    "streaming_llm": lambda a: {
        "name": "streaming_llm",
        "sinks": a["sink"],
        "positions": "original",
        "phase": "oneshot",
    },
    "pyramidkv": lambda a: {
        "name": "pyramidkv",
        "variant": "kvpress",
        "window": a["window"],
        "kernel": a["kernel"],
        "beta": a["beta"],
    },
    "adakv": lambda a: {
        "name": "adakv",
        "alpha": a["alpha_safeguard"],
        "scorer": KVPRESS_SNAPKV | {"window": a["window"], "kernel": a["kernel"]},
    },
    "chunkkv": lambda a: {
        "name": "chunkkv",
        "chunk": a["chunk"],
        "scorer": KVPRESS_SNAPKV | {"window": a["window"], "kernel": a["kernel"]},
    },
    "observed_attention": lambda a: {"name": "h2o", "variant": "observed"},
}


def kvpress_keys():
    with golden("kvpress") as f:
        return [
            (c, k)
            for c, g in f["cases"].items()
            for k, r in g["results"].items()
            if r.attrs["method"] in KVPRESS
        ]


@pytest.mark.parametrize("case,key", kvpress_keys())
def test_a_method_keeps_what_kvpress_keeps(tmp_path, case, key):
    with golden("kvpress") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = {name: x.item() if hasattr(x, "item") else x for name, x in r.attrs.items()}
        n = int(c.attrs["n"])
        write_trace(tmp_path / "t.h5", c, repeat_last=True)
        budget = max(1, int(n * (1 - a["ratio"])))
        rows, out = run(tmp_path, tmp_path / "t.h5", n, KVPRESS[a["method"]](a), budget)
        with h5py.File(out / "kept.h5") as kept:
            for head, want in enumerate(ragged(r, "kept")):
                assert r["margins"][head] >= TINY_MARGIN
                key_of_head = rows[rows.kv_head == head].iloc[0].key
                assert np.array_equal(ragged(kept[key_of_head], "kept")[0], want), f"kv head {head}"
