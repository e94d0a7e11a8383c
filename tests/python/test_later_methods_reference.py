"""The numpy definitions of methods2 against recorded expectations (tests/golden/README.md)."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from reference import budgets, buffered, leverage, output_aware, reads, repeat_scores
from reference.common import Head, Rope

GOLDEN = Path(__file__).parents[1] / "golden" / "methods2_dev.h5"
CASES = ("full_half", "partial_inter")
OUT_TOLERANCE = 1e-5  # relative to the largest expected magnitude; expectations are stored in float32
SCORE_TOLERANCE = 1e-10  # relative to the largest score; stored in float64

pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN.name} is missing")


@pytest.fixture(scope="module")
def golden():
    with h5py.File(GOLDEN) as f:
        yield f["cases"]


def heads_of(case):
    """The kv heads of a case."""
    a, q, k, v, o_proj = case.attrs, *(case[name][:] for name in ("q", "k", "v", "o_proj"))
    rope = Rope(case["rope_inv_freq"][:], a["rope_layout"], float(a["rope_attention_factor"]))
    G = int(a["G"])
    groups = [slice(i * G, (i + 1) * G) for i in range(len(k))]
    return [
        Head(
            q[own],
            k[i],
            v[i],
            float(a["scale"]),
            int(a["P"]),
            kv_head=i,
            rope=rope,
            o_proj=o_proj[own].astype(np.float64),
        )
        for i, own in enumerate(groups)
    ]


def plain(attributes):
    return {name: x.item() if hasattr(x, "item") else x for name, x in attributes.items()}


def same_results(found, result, P):
    """Kept sets of every kv head are identical, and outputs agree if there are any.

    For a stream the file lists the set that each of `first_rows` attends to.
    """
    flat, off = result["kept_flat"][:], result["kept_off"][:]
    steps = result["first_rows"][:] - P if "first_rows" in result else [0]
    mine = [one.kept[step] for one in found for step in steps]
    for i, (a, (begin, end)) in enumerate(zip(mine, pairwise(off), strict=True)):
        assert np.array_equal(a, flat[begin:end]), f"list {i}: {a} expected {flat[begin:end]}"
    if "out" in result:
        want, out = result["out"][:], np.concatenate([one.out for one in found])
        assert out.shape == want.shape
        assert np.abs(out - want).max() <= OUT_TOLERANCE * np.abs(want).max()


def close(found, want, tolerance=SCORE_TOLERANCE):
    found, want = np.asarray(found), np.asarray(want)
    assert found.shape == want.shape
    assert np.abs(found - want).max(initial=0) <= tolerance * np.abs(want).max(initial=0)


# --- Buffered frame -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", ["rkv", "rkv_first", "rkv_sum", "rkv_lam", "rkv_in_budget"])
def test_rkv_keeps_what_is_recorded(golden, case, key):
    heads, result = heads_of(golden[case]), golden[case]["results"][key]
    a = plain(result.attrs)
    given = {name: a[name] for name in ("window", "kernel", "buffer", "threshold", "retain", "agg")}
    given |= {"lambda": a["lam"], "buffer_in_budget": bool(a["buffer_in_budget"])}
    same_results([buffered.rkv(head, a["B"], **given) for head in heads], result, heads[0].P)


@pytest.mark.parametrize("case", CASES)
def test_rkv_finds_the_recorded_importance_and_redundancy_of_the_prompt(golden, case):
    heads, results = heads_of(golden[case]), golden[case]["results"]
    a = plain(results["rkv"].attrs)
    w, P = a["window"], heads[0].P
    for i, head in enumerate(heads):
        logits = head.scale * np.einsum("gwd,md->gwm", head.q[:, P - w : P], head.k[: P - w])
        close(buffered.importance(logits, a["kernel"]), results["rkv_parts/importance"][i])
        close(buffered.redundancy(head.k[:P]), results["rkv_parts/redundancy"][i])


def tri_parameters(a):
    given = {name: a[name] for name in ("buffer", "sinks", "recent", "group") if name in a}
    given |= {name: bool(a[name]) for name in ("normalise", "keep_prompt") if name in a}
    given |= {"offset_agg": a["agg"]} if "agg" in a else {}
    return given | ({"norm_term": "full"} if a.get("mlr") == 0 else {})


TRI = ["tri", "tri_protect", "tri_mean", "tri_max_offsets", "tri_no_mlr", "tri_keep_prompt"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", TRI)
def test_triattention_keeps_what_is_recorded(golden, case, key):
    heads, result = heads_of(golden[case]), golden[case]["results"][key]
    a = plain(result.attrs)
    found = [buffered.triattention(head, a["B"], **tri_parameters(a)) for head in heads]
    same_results(found, result, heads[0].P)


@pytest.mark.parametrize("case", CASES)
def test_triattention_finds_the_recorded_statistics_and_scores(golden, case):
    recorded = golden[case]["results/tri_calibration"]
    for i, head in enumerate(heads_of(golden[case])):
        own = slice(i * head.G, (i + 1) * head.G)
        stats = buffered.calibrate(head)
        close(stats[0], recorded["q_mean"][own] @ [1, 1j])
        close(stats[1], recorded["q_abs_mean"][own])
        close(stats[2], recorded["q_rest_mean"][own])
        scores = buffered.tri_scores(head, stats, np.arange(head.P), head.P)
        close(scores, recorded["scores_at_P"][i])


# --- Output-aware ---------------------------------------------------------------------------------

SNAPKV = {
    "snapkv": {},
    "critical_snapkv": {"wrapper": {"name": "critical", "alpha": 0.5}},
    "critical_snapkv_a0": {"wrapper": {"name": "critical", "alpha": 0.0}},
    "caote_snapkv": {"wrapper": {"name": "caote", "level": "query"}},
    "caote_snapkv_kv": {"wrapper": {"name": "caote", "level": "kv"}},
    "fastcaote_snapkv_kv": {"wrapper": {"name": "caote", "level": "kv", "fast": True}},
    "obc_value_snapkv": {"score": "obc_value", "kernel": 1},
    "obc_key_snapkv": {"score": "obc_key", "kernel": 1},
    "obc_joint_snapkv": {"score": "obc_joint", "kernel": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", SNAPKV)
def test_snapkv_with_values_in_its_score_keeps_what_is_recorded(golden, case, key):
    heads, result = heads_of(golden[case]), golden[case]["results"][key]
    a = plain(result.attrs)
    given = {"window": a["window"], "kernel": a["kernel"]} | SNAPKV[key]
    found = [output_aware.wrapped(head, a["B"], "snapkv", **given) for head in heads]
    same_results(found, result, heads[0].P)


# --- Leverage -------------------------------------------------------------------------------------


def uniforms_of(normal):
    """Uniforms from which Box-Muller makes these numbers, row-major."""
    a, b = normal.reshape(-1, 2).T
    angle = np.minimum(np.arctan2(b, a) / (2 * np.pi) % 1, 1 - 2**-53)
    return np.stack([np.exp(-(a * a + b * b) / 2), angle], axis=1).ravel()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", ["compactor", "compactor_sketch"])
def test_compactor_keeps_what_is_recorded(golden, case, key):
    heads, result = heads_of(golden[case]), golden[case]["results"][key]
    a = plain(result.attrs)
    given = {"chunk": a["chunk"], "sketch": 0}
    if "Phi" in result:
        sketch = result["Phi"].shape[2]
        given |= {"sketch": sketch, "U": [uniforms_of(phi * np.sqrt(sketch)) for phi in result["Phi"][:]]}
    lev, attention = leverage.compactor_parts(heads, **given)
    close(lev, result["leverage"])
    scores = a["blend"] * leverage.standardised(lev) + leverage.standardised(attention)
    close(scores, result["scores"])
    same_results(leverage.compactor(heads, a["B"], a["blend"], **given), result, heads[0].P)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key,variant", [("capkv", "kvpress"), ("capkv_paper", "paper")])
def test_capkv_keeps_what_is_recorded(golden, case, key, variant):
    heads, result = heads_of(golden[case]), golden[case]["results"][key]
    a = plain(result.attrs)
    given = {"n_future": a["n_future"], "variant": variant}
    close([leverage.capkv_scores(head, **given) for head in heads], result["scores"])
    same_results([leverage.capkv(head, a["B"], **given) for head in heads], result, heads[0].P)


@pytest.mark.parametrize("case", CASES)
def test_qfilters_keep_what_is_recorded(golden, case):
    heads, result = heads_of(golden[case]), golden[case]["results/qfilters"]
    a = plain(result.attrs)
    found = [leverage.qfilters(head, a["B"], recent=a["window"]) for head in heads]
    same_results(found, result, heads[0].P)


# --- Reads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_magicpig_samples_and_weighs_what_is_recorded(golden, case):
    for i, head in enumerate(heads_of(golden[case])):
        recorded = golden[case][f"results/reads/head{i}"]
        a, last = plain(recorded.attrs), head.n - 1
        # The recorded local tokens include the row itself: with a prompt of n - 1 tokens there is one less.
        found = reads.magicpig(
            replace(head, P=last),
            **{name: a[name] for name in ("K", "L", "sinks")},
            local=a["local"] - 1,
            dense_layers=(),
            U=uniforms_of(recorded["magicpig_phi"][:]),
        )
        close(found.out[:, 0], recorded["magicpig_out"], OUT_TOLERANCE)
        middle = np.arange(a["sinks"], head.n - a["local"])
        centre = head.k[middle].mean(axis=0)
        for g, tokens in enumerate(found.tokens[0]):
            sampled = np.intersect1d(tokens, middle)
            assert np.array_equal(sampled, recorded[f"magicpig_tokens_{g}"])
            u = reads.collision_probability(head.q[g, last], head.k[sampled] - centre, a["K"], a["L"])
            close(u, recorded[f"magicpig_u_{g}"])


@pytest.mark.parametrize("case", CASES)
def test_rocketkv_reads_the_recorded_tokens_by_the_recorded_channels(golden, case):
    for i, head in enumerate(heads_of(golden[case])):
        recorded = golden[case][f"results/reads/head{i}"]
        a = plain(recorded.attrs)
        tokens, channels, _ = reads.rocket_stage2(head.q[:, -1], head.k, a["rocket_ratio"], a["rocket_topk"])
        assert reads.rocket_page(a["rocket_ratio"]) == a["rocket_page"]
        assert np.array_equal(channels, recorded["rocket_dims"])
        assert np.array_equal(tokens, recorded["rocket_tokens"])


# --- Repeat pass ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", ["kvzip_uniform", "kvzip_layer", "kvzip_plus_uniform", "kvzip_plus_layer"])
def test_kvzip_keeps_what_is_recorded(golden, case, key):
    c, heads = golden[case], heads_of(golden[case])
    result = c["results"][key]
    a = plain(result.attrs)
    G, R = heads[0].G, c["repeat_q"].shape[1]
    q, k, norm = (c[name][:].astype(float) for name in ("repeat_q", "repeat_k", "repeat_norm"))
    # Both chunks share their repeat rows, which therefore appear twice.
    repeats = [
        repeat_scores.Repeat(
            np.tile(q[i * G : (i + 1) * G], (1, 2, 1)),
            np.tile(k[i], (2, 1)),
            (0, R, 2 * R),
            (0, a["chunk0"], heads[0].P),
            np.tile(norm, 2),
        )
        for i in range(len(heads))
    ]
    plus, level = key.startswith("kvzip_plus"), key.rpartition("_")[2]
    scores = [
        repeat_scores.kvzip_scores(h, r, a["n_sink"], plus) for h, r in zip(heads, repeats, strict=True)
    ]
    close(scores, result["scores"])
    (found,) = repeat_scores.kvzip([heads], [repeats], a["B"], level, a["n_sink"], plus=plus)
    same_results(found, result, heads[0].P)


# --- Budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_lu_kv_shares_the_budget_as_recorded(golden, case):
    heads, recorded = heads_of(golden[case]), golden[case]["results/budgets"]
    snapkv = plain(golden[case]["results/snapkv"].attrs)
    votes = [output_aware.snapkv_mean(head, snapkv["window"], snapkv["kernel"]) for head in heads]
    scores, protected = [x.group for x in votes], votes[0].protected
    curves = [
        budgets.utility(budgets.future_mass(head), budgets.keep_order(s, protected))
        for head, s in zip(heads, scores, strict=True)
    ]
    close(curves, recorded["curves"])
    close([budgets.hull_slopes(curve) for curve in curves], recorded["slopes"])
    B = int(recorded.attrs["total"]) // len(heads)
    assert np.array_equal(budgets.lu_kv_budgets(heads, scores, protected, B), recorded["lu_kv"])


@pytest.mark.parametrize("case", CASES)
def test_duo_attention_measures_heads_as_recorded(golden, case):
    heads, recorded = heads_of(golden[case]), golden[case]["results/budgets"]
    a = plain(recorded.attrs)
    mass = [budgets.duo_mass(head, a["duo_sinks"], a["duo_recent"]) for head in heads]
    close(mass, recorded["duo_mass"])
    close([budgets.duo_area(head, a["duo_length"]) for head in heads], recorded["duo_area"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rule", ["mass", "area"])
def test_one_of_two_heads_of_duo_attention_streams_and_the_other_keeps_everything(golden, case, rule):
    heads, recorded = heads_of(golden[case]), golden[case]["results/budgets"]
    a = plain(recorded.attrs)
    sinks, recent = a["duo_sinks"], a["duo_recent"]
    (found,) = budgets.duo_attention([heads], None, rule, 0.5, sinks, recent, a["duo_length"])
    narrow = int(np.argmin(recorded["duo_" + rule]))
    for i, one in enumerate(found):
        for t, kept in enumerate(one.kept, start=heads[0].P):
            streamed = np.append(np.arange(sinks), np.arange(t - recent, t))
            assert np.array_equal(kept, streamed if i == narrow else np.arange(t))
