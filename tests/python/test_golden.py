"""The methods against recorded expectations (tests/golden/README.md): kept sets, outputs and measures."""

import json
import os
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from token_lists import ragged

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("KVREPLAY", str(ROOT / "build/release/kvreplay"))
TINY_MARGIN = 1e-6  # closer decisions are not checked: another summation order may flip them
OUTPUT_TOLERANCE = 1e-5  # relative to the largest expected magnitude; expectations are stored in float32
MEASURE_TOLERANCE = 1e-4

PAPER_WALK = (
    {"name": "balancekv", "walk": "paper"},
    {"sinks": "sink", "recent": "recent", "rounds": "T", "block": "b", "c": "c", "temp": "temp"},
)
# golden key -> configuration, and {our parameter: attribute of the golden result}
ORACLE = {
    "window": ({"name": "window"}, {}),
    "sink": ({"name": "streaming_llm", "positions": "original"}, {"sinks": "sink"}),
    "sink_repos": ({"name": "streaming_llm"}, {"sinks": "sink"}),
    "knorm": ({"name": "knorm"}, {"phase": "mode", "recent": "recent"}),
    "knorm_oneshot": ({"name": "knorm"}, {"phase": "mode", "recent": "recent"}),
    "keydiff": ({"name": "keydiff"}, {"phase": "mode", "recent": "recent"}),
    "keydiff_oneshot": ({"name": "keydiff"}, {"phase": "mode", "recent": "recent"}),
    "keydiff_recent": ({"name": "keydiff"}, {"phase": "mode", "recent": "recent"}),
    "h2o": ({"name": "h2o"}, {"heavy": "heavy", "recent": "recent"}),
    "h2o_heavy_only": ({"name": "h2o_heavy"}, {"recent": "recent"}),
    "scissorhands": ({"name": "scissorhands"}, {"hist": "hist", "recent": "recent", "drop": "drop"}),
    "tova": ({"name": "tova"}, {"recent": "recent"}),
    "tova_oneshot": ({"name": "tova", "phase": "oneshot"}, {"recent": "recent"}),
    "buzz": (
        {"name": "buzz", "variant": "paper"},
        {"sinks": "sink", "window": "window", "stride": "stride", "threshold": "T"},
    ),
    "snapkv_max": ({"name": "snapkv", "pool": "max"}, {"window": "window", "kernel": "kernel"}),
    "snapkv_avg": ({"name": "snapkv", "pool": "avg"}, {"window": "window", "kernel": "kernel"}),
    "uniform": ({"name": "uniform"}, {"sinks": "sink", "recent": "recent", "m": "m"}),
    "subgen_practical": ({"name": "subgen"}, {"recent": "recent"}),
    "subgen_practical_w": ({"name": "subgen", "weights": "cluster_size"}, {"recent": "recent"}),
    "balancekv_greedy": PAPER_WALK,
    "balancekv_c": PAPER_WALK,
    "balancekv_temp": PAPER_WALK,
    "subgen_alg1": ({"name": "subgen_stream"}, {"delta": "delta", "t": "t", "s": "s"}),
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
    """A trace of one layer; repeat_last adds one token, so that there is a decode row."""
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
        if "n_layers" in case.attrs:  # budgets differ between layers
            f.attrs["n_layers"], number = int(case.attrs["n_layers"]), int(case.attrs["layer"])
        layer = f.create_group(f"prompts/p0/layers/{number:03}")
        layer.attrs["scaling"] = float(case.attrs["scale"])
        for name, x in zip("qkv", (q, k, v), strict=True):
            layer[name] = x


def run(folder, trace, prefill, method, budget, may_fail=False):
    config = {
        "schema": 1,
        "traces": [str(trace)],
        "replay": {"prefill": int(prefill)},
        "methods": [method],
        "seeds": {"first": 0, "count": 1},
        "run": {"precision": "double"},
        "output": {"dir": str(folder / "out"), "save": ["kept", "curves", "outputs"]},
    }
    if budget is not None:
        config["budget"] = {"tokens": [int(budget)]}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [BINARY, "run", path, "--force", "--progress", "none"], capture_output=True, text=True
    )
    assert done.returncode in ((0, 1) if may_fail else (0,)), done.stderr
    return pd.read_csv(folder / "out/results.csv"), folder / "out"


def write_uniforms(path, arrays):
    with h5py.File(path, "w") as f:
        for name, values in arrays.items():
            f[name] = values[:].astype(np.float64)
    return str(path)


def decided_steps(margins):
    """Number of leading lists that must be identical."""
    close = np.nonzero(margins < TINY_MARGIN)[0]
    return len(margins) if not len(close) else close[0]


def budget_of(a):
    """Budget in tokens, or None for a method that determines its own size."""
    if "stored_keys" in a:
        return None
    return a.get("B") or sum(a[part] for part in ("sink", "recent", "window", "m", "T") if part in a)


def judged_margins(key, a, r):
    """Margins of every kept list; max pooling copies values, so that its ties are exact and decidable."""
    if key == "snapkv_max":
        return np.full(1 << 20, np.inf)
    return r["margins"][:].ravel() if "margins" in r else np.array([a["margin"]])


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
        drawn = {name: r[name] for name in ("u", "U", "UD", "UM") if name in r}
        if drawn:
            method["uniforms"] = write_uniforms(tmp_path / "u.h5", drawn)
        rows, out = run(tmp_path, tmp_path / "t.h5", prefill, method, budget_of(a))
        row = rows.iloc[0]
        if "mu" in a:
            said = json.loads(row.extras)
            assert said["clusters"] == r["m"][-1]
            assert said["mu"] == pytest.approx(a["mu"], rel=1e-9)
            assert row.peak_kept_tokens == a["stored_keys"]
        margins = judged_margins(key, a, r)
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
    "buzz": lambda a: (
        {
            "name": "buzz",
            "sinks": a["sink"],
            "window": a["window"],
            "stride": a["stride"],
            "threshold": a["T"],
            "prefill_passes": a["prefill_passes"],
        },
        a["sink"] + a["window"] + a["T"],
    ),
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


# BalanceKV and its coin: the tokens before the window are the prompt, so the window needs no protection.
def balance_keys():
    with golden("reference") as f:
        named = ((c, k) for c, g in f["cases"].items() for k in g["results"])
        return [(c, k) for c, k in named if k.startswith(("balancekv", "coin"))]


@pytest.mark.parametrize("case,key", balance_keys())
def test_balancekv_halves_as_the_public_code(tmp_path, case, key):
    with golden("reference") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = {name: x.item() if hasattr(x, "item") else x for name, x in r.attrs.items()}
        write_trace(tmp_path / "t.h5", c)
        ours = {"sinks": "sink", "rounds": "T", "c0": "kernel_const"}
        method = {"name": "balancekv", "recent": 0} | {name: a[theirs] for name, theirs in ours.items()}
        method |= {name: a[name] for name in ("block", "gamma", "tau", "beta", "den")}
        method["uniforms"] = write_uniforms(tmp_path / "u.h5", {"uniforms": r["uniforms"]})
        prefill = int(c.attrs["n"]) - a["window"]
        rows, out = run(tmp_path, tmp_path / "t.h5", prefill, method, a["sink"] + a["n_kept"])
        row = rows.iloc[0]
        assert row.rel_err_out_mean == pytest.approx(a["rel_mean"], rel=MEASURE_TOLERANCE)
        with h5py.File(out / "kept.h5") as kept:
            sinks, got = a["sink"], kept[row.key]
            assert np.array_equal(ragged(got, "kept")[0], np.append(np.arange(sinks), r["kept"][:]))
            assert np.array_equal(got["num"][:], np.append(np.ones(sinks), r["weights"][:]))
            assert np.array_equal(got["den"][:], np.append(np.ones(sinks), r["den_weights"][:]))
        with h5py.File(out / "outputs.h5") as h, h5py.File(out / "curves.h5") as curves:
            at = np.searchsorted(h[row.key]["rows"][:], r["out_rows"][:])
            difference = np.abs(h[row.key]["out"][:][:, at] - r["out"][:])
            assert difference.max() <= OUTPUT_TOLERANCE * np.abs(r["out"][:]).max()
            rel = r["rel"][:]
            assert np.abs(curves[row.key]["rel_err"][:] - rel).max() <= OUTPUT_TOLERANCE * rel.max()


@pytest.mark.parametrize("key", ["sbwalk", "sbwalk_c"])
@pytest.mark.parametrize("case", cases("oracle"))
def test_the_self_balancing_walk_keeps_the_smaller_class_of_the_oracle(tmp_path, case, key):
    """The prompt is all tokens but the last, all of them middle tokens; signs do not depend on later
    tokens."""
    with golden("oracle") as f:
        c, results = f["cases"][case], f["cases"][case]["results"]
        a, n = dict(results[key].attrs), int(c.attrs["n"])
        write_trace(tmp_path / "t.h5", c)
        method = {"name": "self_balancing_walk", "kernel": "k", "sinks": 0, "recent": 0}
        method |= {"c": float(a["c"]), "r": float(a["r"])}
        method["uniforms"] = write_uniforms(tmp_path / "u.h5", {"U": results["sbwalk"]["U"]})
        rows, out = run(tmp_path, tmp_path / "t.h5", n - 1, method, n // 2, may_fail=True)
        row = rows.iloc[0]
        if a["fail_index"] >= 0:
            assert row.status == "failed"
            assert f"token {a['fail_index']}:" in row.error
            return
        sign = results[key]["eps"][: n - 1]
        small = 1 if 2 * (sign > 0).sum() <= n - 1 else -1
        with h5py.File(out / "kept.h5") as kept:
            assert np.array_equal(ragged(kept[row.key], "kept")[0], np.flatnonzero(sign == small))
            assert np.all(kept[row.key]["num"][:] == 2)


KVPRESS_SNAPKV = {"name": "snapkv", "variant": "kvpress"}
KVPRESS = {
    "snapkv": lambda a: {"name": "snapkv", "window": a["window"], "kernel": a["kernel"], "pool": a["pool"]},
    "streaming_llm": lambda a: {
        "name": "streaming_llm",
        "sinks": a["sink"],
        "positions": "original",
        "phase": "oneshot",
    },
    "tova": lambda a: {"name": "tova", "variant": "layer", "phase": "oneshot"},
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
    "knorm": lambda a: {"name": "knorm"},
    "keydiff": lambda a: {"name": "keydiff"},
    "expected_attention": lambda a: {
        "name": "expected_attention",
        "n_future": a["n_future"],
        "sinks": a["sink"],
        "covariance": bool(a["use_covariance"]),
        "vnorm": bool(a["use_vnorm"]),
        "eps": a["epsilon"],
    },
    "lagkv": lambda a: {"name": "lagkv", "sinks": a["sink"], "lag": a["lag"]},
    "cur": lambda a: {"name": "curdkv", "sinks": a["sink"], "block": a["local_window"]},
    "noncausal": lambda a: {"name": "noncausal"},
}


def has_top_scores(kept, scores):
    """For decisions too close to check: whether the kept tokens have the best scores, up to TINY_MARGIN."""
    dropped = np.delete(scores, kept)
    return scores[kept].min() >= dropped.max() - TINY_MARGIN * np.abs(scores).max()


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
                got = ragged(kept[rows[rows.kv_head == head].iloc[0].key], "kept")[0]
                assert len(got) == len(want), f"kv head {head}"
                if r["margins"][head] < TINY_MARGIN:
                    assert has_top_scores(got, r["scores"][head]), f"kv head {head}"
                else:
                    assert np.array_equal(got, want), f"kv head {head}"
