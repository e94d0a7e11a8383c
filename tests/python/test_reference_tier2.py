"""The numpy definitions of the tier-2 methods against recorded expectations (tests/golden/README.md)."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from reference import tier2_scores as scores
from reference import tier2_select as select
from reference.common import Head, Rope
from token_lists import ragged

GOLDEN = Path(__file__).parents[1] / "golden"
TINY_MARGIN = 1e-6


def golden(kind):
    return h5py.File(GOLDEN / f"{kind}_dev.h5")


def heads_of(case):
    """The kv heads of a case; the prompt is all tokens if the case has no prompt length."""
    q, k, v = (case[name][:] for name in "qkv")
    a = case.attrs
    group, d, theta = int(a["G"]), k.shape[2], float(a["rope_theta"])
    return [
        Head(
            q=q[i * group : (i + 1) * group],
            k=k[i],
            v=v[i],
            scale=float(a["scale"]),
            P=int(a["P"]) if "P" in a else k.shape[1],
            layer=int(a["layer"]) if "layer" in a else 0,
            kv_head=i,
            n_layers=int(a["n_layers"]) if "n_layers" in a else 1,
            rope=Rope(theta ** (-np.arange(0, d, 2) / d)),
        )
        for i in range(len(k))
    ]


def keys_of(kind, methods):
    with golden(kind) as f:
        return [
            (c, k)
            for c, g in f["cases"].items()
            for k, r in g["results"].items()
            if r.attrs["method"] in methods
        ]


STREAMING = {"tova": select.tova, "knorm": select.knorm, "keydiff": select.keydiff}


@pytest.mark.parametrize("case,key", keys_of("oracle", STREAMING))
def test_a_reference_reproduces_the_oracle(case, key):
    with golden("oracle") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = r.attrs
        head = heads_of(c)[0]
        recent = int(a.get("recent", 0))
        found = STREAMING[a["method"]](head, int(a["B"]), phase=a["mode"], recent=recent)
        kept = found.kept
        if len(kept) == 1:
            kept = [np.append(kept[0], np.arange(head.P, t)) for t in range(head.P, head.n + 1)]
        assert r["margins"][:].min() >= TINY_MARGIN
        for step, (mine, theirs) in enumerate(zip(kept, ragged(r, "kept"), strict=True)):
            assert np.array_equal(mine, theirs), f"step {step}"
        rows = c["out_rows"][:] - head.P
        expected = r["out"][:]
        assert np.abs(found.out[:, rows] - expected).max() <= 1e-5 * np.abs(expected).max()


def snapkv(a):
    return {
        "name": "snapkv",
        "window": int(a["window"]),
        "kernel": int(a["kernel"]),
        "pool": a["pool"],
        **MEAN_AFTER,
    }


MEAN_AFTER = {"agg": "mean", "when": "after"}
SCORERS = {
    "snapkv": snapkv,
    "tova": lambda a: {"name": "tova", "variant": "kvpress"},
    "knorm": lambda a: "knorm",
    "keydiff": lambda a: "keydiff",
    "expected_attention": lambda a: {
        "name": "expected_attention",
        "n_future": int(a["n_future"]),
        "sinks": int(a["sink"]),
        "eps": float(a["epsilon"]),
    },
    "lagkv": lambda a: {"name": "lagkv", "sinks": int(a["sink"]), "lag": int(a["lag"])},
    "cur": lambda a: {"name": "curdkv", "sinks": int(a["sink"]), "block": int(a["local_window"])},
    "noncausal": lambda a: "noncausal",
    "observed_attention": lambda a: "observed",
}


def kept_by(a, heads):
    """The kept sets of one kvpress result, computed by the definitions here."""
    B, wrapped = int(a["n_kept"]), a["method"]
    if wrapped == "adakv":
        return select.adakv(heads, B, alpha=float(a["alpha_safeguard"]), scorer=snapkv(a))
    if wrapped == "chunkkv":
        B = int(heads[0].P * (1 - float(a["ratio"])))
        return select.chunkkv(heads, B, chunk=int(a["chunk"]), scorer=snapkv(a))
    if wrapped == "pyramidkv":
        B = heads[0].P * (1 - float(a["ratio"]))
        return select.pyramid(heads, B, snapkv(a), beta=int(a["beta"]), w=int(a["window"]))
    return select.by_score(heads, B, SCORERS[wrapped](a))


@pytest.mark.parametrize("case,key", keys_of("kvpress", [*SCORERS, "adakv", "chunkkv", "pyramidkv"]))
def test_a_reference_keeps_what_kvpress_keeps(case, key):
    with golden("kvpress") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        for i, (found, want) in enumerate(zip(kept_by(r.attrs, heads_of(c)), ragged(r, "kept"), strict=True)):
            mine = found.kept[0]
            if r["margins"][i] >= TINY_MARGIN or key.startswith("noncausal"):
                assert np.array_equal(mine, want), f"kv head {i}"
            else:
                assert len(mine) == len(want)
                dropped = np.setdiff1d(np.arange(c["k"].shape[1]), mine)
                s = r["scores"][i]
                assert s[mine].min() >= s[dropped].max() - 1e-6 * abs(s[dropped].max())


@pytest.mark.parametrize("case,key", keys_of("kvpress", ["lagkv", "cur", "noncausal", "expected_attention"]))
def test_a_reference_finds_the_scores_of_kvpress(case, key):
    with golden("kvpress") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        heads = heads_of(c)
        found = scores.score(SCORERS[r.attrs["method"]](r.attrs), heads)
        free = ~found.protected
        want = r["scores"][:][:, free]
        assert np.abs(found.scores[:, free] - want).max() <= 1e-4 * np.abs(want).max()


def test_pyramid_budgets_equal_the_recorded_table():
    with golden("kvpress") as f:
        for n, ratio, w, beta, *budgets in f["pyramid_budgets/table"][:]:
            B = n * (1 - ratio)
            found = [select.pyramid_budget(B, int(n), w, layer, 30, beta) for layer in range(30)]
            assert found == [int(b) for b in budgets], json.dumps([n, ratio, w, beta])
