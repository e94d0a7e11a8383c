"""The numpy reference of the tier 1 methods against recorded expectations (tests/golden/README.md)."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from engine_vs_reference import CASES, H2O, KEYFORMER, RECENCY, SCISSORHANDS
from reference.balance import WalkFailed, balancekv, sign_walk, uniform
from reference.buzz import buzz
from reference.common import EmptyDenominator, Head, Rope, exact_out, per_query_head, philox
from reference.h2o import h2o, h2o_heavy
from reference.heads import SHAPES, heads
from reference.keyformer import PUNCTUATION, SPECIAL, fastgen
from reference.oracles import topk_oracle
from reference.recency import streaming_llm, window
from reference.scissorhands import scissorhands
from reference.snapkv import layer_budget, pyramidkv, snapkv
from reference.subgen import subgen, subgen_stream
from token_lists import ragged

GOLDEN = Path(__file__).parents[1] / "golden"
TINY_MARGIN = 1e-9  # closer decisions are not checked: float64 with other summation orders
OUTPUT_TOLERANCE = 1e-6  # relative to the largest expected magnitude; expectations are stored in float32


def golden(kind):
    return h5py.File(GOLDEN / f"{kind}_dev.h5")


def keys(kind, wanted):
    with golden(kind) as f:
        return [(c, k) for c, g in f["cases"].items() for k in g["results"] if wanted(k)]


def attributes(group):
    return {name: x.item() if hasattr(x, "item") else x for name, x in group.attrs.items()}


@cache
def head_of(kind, case, kv_head=0, prefill=None, repeat_last=False):
    with golden(kind) as f:
        a = attributes(f["cases"][case])
        q, k, v = (f["cases"][case][name][:].astype(float) for name in "qkv")
    if repeat_last:
        q, k, v = (np.concatenate([x, x[:, -1:]], axis=1) for x in (q, k, v))
    d = a["d"]
    return Head(
        q[kv_head * a["G"] : (kv_head + 1) * a["G"]],
        k[kv_head],
        v[kv_head],
        a["scale"],
        a["P"] if prefill is None else prefill,
        layer=a.get("layer", 1),
        kv_head=kv_head,
        n_layers=a.get("n_layers", 30),
        rope=Rope(a["rope_theta"] ** (-np.arange(0, d, 2) / d)),
    )


def same_lists(got, want, head):
    """Compares kept lists; a one-shot result stores only its first list."""
    if len(got) == 1 < len(want):
        got = [np.append(got[0], np.arange(head.P, t)) for t in range(head.P, head.n + 1)]
    assert len(got) == len(want)
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert np.array_equal(mine, theirs), f"list {i}"


def same_outputs(out, rows, expected, head):
    got = out[:, rows - head.P]
    assert np.abs(got - expected).max() <= OUTPUT_TOLERANCE * np.abs(expected).max()


def oracle_call(key, a, r):
    """Calls the reference for one oracle key."""
    uniforms = {name: r[name][:] for name in ("UD", "UM", "U", "u") if name in r}
    if key.startswith("balancekv"):
        sizes = {"sinks": a["sink"], "recent": a["recent"], "rounds": a["T"], "block": a["b"]}
        more = {"walk": "paper", "c": a["c"], "temp": a["temp"], "U": uniforms["U"]}
        return lambda h: balancekv(h, None, **sizes, **more)
    return {
        "window": lambda h: window(h, a["B"]),
        "sink": lambda h: streaming_llm(h, a["B"], sinks=a["sink"], positions="original"),
        "sink_repos": lambda h: streaming_llm(h, a["B"], sinks=a["sink"]),
        "h2o": lambda h: h2o(h, a["B"]),
        "h2o_heavy_only": lambda h: h2o_heavy(h, a["B"]),
        "scissorhands": lambda h: scissorhands(h, a["B"], hist=a["hist"], recent=a["recent"], drop=a["drop"]),
        "snapkv_max": lambda h: snapkv(h, a["B"], window=a["window"], kernel=a["kernel"], pool="max"),
        "snapkv_avg": lambda h: snapkv(h, a["B"], window=a["window"], kernel=a["kernel"], pool="avg"),
        "buzz": lambda h: buzz(
            h,
            None,
            sinks=a["sink"],
            stride=a["stride"],
            window=a["window"],
            threshold=a["T"],
            variant="paper",
        ),
        "subgen_practical": lambda h: subgen(h, a["B"], recent=a["recent"]),
        "subgen_practical_w": lambda h: subgen(h, a["B"], recent=a["recent"], weights="cluster_size"),
        "subgen_alg1": lambda h: subgen_stream(h, delta=a["delta"], t=a["t"], s=a["s"], **uniforms),
        "topk_group": lambda h: topk_oracle(h, a["B"], extra=a["extra"]),
        "topk_head": lambda h: topk_oracle(h, a["B"], extra=a["extra"], per_head=True),
        "uniform": lambda h: uniform(
            h,
            a["sink"] + a["recent"] + a["m"],
            sinks=a["sink"],
            recent=a["recent"],
            m=a["m"],
            u=uniforms["u"],
        ),
    }.get(key)


NOT_HERE = ("keydiff", "knorm", "tova", "sparsity", "sbwalk")


@pytest.mark.parametrize("case,key", keys("oracle", lambda k: not k.startswith(NOT_HERE)))
def test_the_reference_equals_the_oracle(case, key):
    with golden("oracle") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        head, a = head_of("oracle", case), attributes(r)
        result = oracle_call(key, a, r)(head)
        if "kept_flat" in r:
            same_lists(result.kept, ragged(r, "kept"), head)
        if "attended_flat" in r:
            same_lists(result.attended, ragged(r, "attended"), head)
        if "weights" in r:
            assert np.array_equal(result.num[0], r["weights"][:])
            assert np.array_equal(result.den[0], r["weights"][:])
        same_outputs(result.out, c["out_rows"][:], r["out"][:], head)
        for name in ("m", "reps", "counts", "lists", "M"):
            if key == "subgen_alg1":
                assert np.array_equal(result.extras[name], r[name][:]), name


@pytest.mark.parametrize("case,key", keys("oracle", lambda k: k.startswith("sbwalk")))
def test_the_bare_walk_equals_the_oracle(case, key):
    with golden("oracle") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = attributes(r)
        k = c["k"][0].astype(float)
        assert a["r"] == pytest.approx(np.sqrt((k**2).sum(axis=1)).max(), rel=1e-6)
        U = f["cases"][case]["results"]["sbwalk/U"][:]
        sign, p, failed = sign_walk(k @ k.T, U, a["c"] * a["r"] ** 2)
        assert failed == a["fail_index"]
        assert np.array_equal(sign, r["eps"][:])
        assert np.abs(p - r["p"][:]).max() <= OUTPUT_TOLERANCE


def reference_call(a, r):
    """The reference call, and the P that replaces the case's P."""
    positions = {"reassign": "cache", "original": "original"}.get(a.get("rope"))
    if a["method"].startswith("balancekv"):
        more = {
            "sinks": a["sink"],
            "recent": 0,
            "rounds": a["T"],
            "block": a["block"],
            "gamma": a.get("gamma", 0.0),
            "tau": a.get("tau", 0.1),
            "beta": a.get("beta", 0.0),
            "c0": a.get("kernel_const", 0.025),
            "den": a["den"],
            "U": r["uniforms"][:],
        }
        return lambda h: balancekv(h, None, **more)
    if a["method"] == "h2o_real_drop":
        return lambda h: h2o(h, None, heavy=a["heavy"], recent=a["recent"], positions=positions)
    if a["method"] == "buzz":
        sizes = {"sinks": a["sink"], "window": a["window"], "threshold": a["T"], "stride": a["stride"]}
        return lambda h: buzz(h, None, prefill_passes=a["prefill_passes"], positions=positions, **sizes)
    return lambda h: streaming_llm(h, a["sink"] + a["recent"], sinks=a["sink"], positions=positions)


def alternating_heads(pairs):
    """Each key on one of both heads, alternating: the other head would only repeat it, and take long."""
    cases = sorted({case for case, _ in pairs})
    order = sorted({key for _, key in pairs})
    repeated = [(cases.index(case) + order.index(key)) % len(cases) > 0 for case, key in pairs]
    return [
        pytest.param(*pair, marks=pytest.mark.slow if again else ())
        for pair, again in zip(pairs, repeated, strict=True)
    ]


@pytest.mark.parametrize("case,key", alternating_heads(keys("reference", lambda k: True)))
def test_the_reference_equals_the_public_code(case, key):
    with golden("reference") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = attributes(r)
        shot = a["method"].startswith("balancekv")
        head = head_of("reference", case, prefill=int(c.attrs["n"]) - a["window"] if shot else None)
        call = reference_call(a, r)
        result = per_query_head(call, head) if a.get("granularity") == "per_q_head" else call(head)
        if shot:
            assert np.array_equal(result.extras["middle"], r["kept"][:])
            assert np.array_equal(result.extras["w"], r["weights"][:])
            assert np.array_equal(result.extras["signs"][0], r["signs_pass0"][:])
            assert np.array_equal(result.den[0][a["sink"] :], r["den_weights"][:])
        else:
            same_lists(result.kept, ragged(r, "kept"), head)
        same_outputs(result.out, r["out_rows"][:], r["out"][:], head)


KVPRESS = {
    "snapkv": lambda a: (
        lambda h: snapkv(
            h, a["n_kept"], variant="kvpress", window=a["window"], kernel=a["kernel"], pool=a["pool"]
        )
    ),
    "pyramidkv": lambda a: (
        lambda h: pyramidkv(
            h,
            h.P * (1 - a["ratio"]),
            variant="kvpress",
            beta=a["beta"],
            window=a["window"],
            kernel=a["kernel"],
            pool=a["pool"],
        )
    ),
    "streaming_llm": lambda a: (
        lambda h: streaming_llm(h, a["n_kept"], sinks=a["sink"], positions="original", phase="oneshot")
    ),
    "observed_attention": lambda a: lambda h: h2o(h, a["n_kept"], variant="observed"),
}


@pytest.mark.parametrize("case,key", keys("kvpress", lambda k: k.startswith(tuple(KVPRESS))))
def test_the_reference_keeps_what_kvpress_keeps(case, key):
    with golden("kvpress") as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        a = attributes(r)
        for kv_head, want in enumerate(ragged(r, "kept")):
            head = head_of("kvpress", case, kv_head, prefill=int(c.attrs["n"]), repeat_last=True)
            assert r["margins"][kv_head] >= TINY_MARGIN
            assert np.array_equal(KVPRESS[a["method"]](a)(head).kept[0], want), f"kv head {kv_head}"


def test_pyramid_budgets_equal_the_package_in_every_row_of_its_table():
    with golden("kvpress") as f:
        for n, ratio, window_size, beta, *want in f["pyramid_budgets/table"][:]:
            budgets = [
                layer_budget(n * (1 - ratio), int(n), int(window_size), beta, layer, 30)
                for layer in range(30)
            ]
            assert budgets == want, (n, ratio, window_size, beta)


@cache
def of_case(number, trace, budget):
    """A case's result for the first head of a trace; None if it fails by design."""
    try:
        return CASES[number].call(FIRST_HEADS[trace], budget, 3)
    except (WalkFailed, EmptyDenominator):
        return None


FIRST_HEADS = {name: next(iter(heads(shape).values())) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_every_case_runs_and_its_lists_ascend(case):
    for trace in case.traces:
        head = FIRST_HEADS[trace]
        for budget in case.budgets or (None,):
            result = of_case(CASES.index(case), trace, budget)
            if result is None:
                continue
            assert result.out.shape == (head.G, head.n - head.P, head.dv)
            assert np.isfinite(result.out).all()
            assert all(np.all(np.diff(kept) > 0) for kept in result.kept or [])


MAY_STAY_INEXACT = {
    "log_n",
    "preset",
    "f",
    "variant",
    "rounds",
    "heavy",
    "window",
    "threshold",
    "w",
    "l",
    "c",
}


def keeps_all(case):
    fixed = {"topk_oracle", "self_balancing_walk"}
    keys_given = set(case.entry) - {"name"}
    return case.budgets is not None and case.entry["name"] not in fixed and not keys_given & MAY_STAY_INEXACT


@pytest.mark.parametrize("case", [c for c in CASES if keeps_all(c)], ids=lambda c: c.id)
def test_a_budget_of_all_tokens_is_exact(case):
    for trace in case.traces:
        head = FIRST_HEADS[trace]
        exact = exact_out(head)
        out = case.call(head, 4 * head.n, 3).out  # static patterns need room for a stride of 1
        assert np.abs(out - exact).max() <= 1e-12 * np.abs(exact).max(), trace


@pytest.mark.parametrize(
    "case", [c for c in RECENCY + H2O + SCISSORHANDS + KEYFORMER if c.budgets], ids=lambda c: c.id
)
def test_no_kept_list_exceeds_the_budget(case):
    for trace in case.traces:
        for budget in case.budgets:
            result = of_case(CASES.index(case), trace, budget)
            more = case.entry.get("variant") == "lm_eval"
            assert all(len(kept) <= budget + more for kept in result.kept or [])


def test_fastgen_takes_the_cheapest_policy_that_recovers_enough():
    head = FIRST_HEADS["grouped"]
    classes = np.zeros(head.n, dtype=int)
    classes[0], classes[5::7] = SPECIAL, PUNCTUATION
    policies = []
    for recovery in (1e-9, 0.3, 0.6, 0.8, 0.95, 1.0):
        result = fastgen(head, classes=classes, recovery=recovery)
        policies.append(result.extras["policy"])
        assert all(kept[0] == 0 for kept in result.kept)
    assert policies[0] == 0
    assert policies == sorted(policies)
    assert policies[-1] == 4
    assert np.abs(result.out - exact_out(head)).max() <= 1e-12 * np.abs(result.out).max()


def test_flexgen_holds_one_less_than_two_halves_and_promotes_the_oldest_recent():
    head = FIRST_HEADS["single"]
    kept = h2o(head, 17, variant="flexgen").kept
    for t, (before, after) in enumerate(pairwise(kept), start=head.P):
        assert len(after) == 15
        assert t - 7 in after  # recents are the last 7; the token before them was promoted
        assert len(np.setdiff1d(before, after)) == 1


def test_the_mask_simulation_hides_a_column_for_exactly_one_step():
    head = FIRST_HEADS["single"]
    attended = h2o(head, 17, variant="hf_mask").attended
    for t, visible in enumerate(attended, start=head.P):
        assert t - 9 not in visible  # recent = 9: columns t-8..t are recent, t-9 is in neither list
        assert len(visible) == 17


def test_philox_gives_the_published_known_answers():
    ones = 0xFFFFFFFF
    assert [int(x) for x in philox((0, 0, 0, 0), (0, 0))] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(x) for x in philox((ones,) * 4, (ones,) * 2)] == [
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    ]
