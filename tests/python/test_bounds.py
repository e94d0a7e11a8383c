"""`kvreplay bounds` against independently written formulas, and its messages."""

import csv
import io
import json
import math

import h5py
import numpy as np
import pytest
from kvreplay_cli import ROOT, kvreplay
from reference.heads import SHAPES, heads, write_trace
from reference.subgen import median_distance

ORACLE = ROOT / "tests/golden/oracle_dev.h5"
CLOSE = 1e-9  # both sides are double; a logarithm of 10^5 keeps 11 digits
LN10 = math.log(10)


def bounds(*words):
    done = kvreplay("bounds", *words, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def by_quantity(rows, paper, **inputs):
    """{quantity: row} of one paper and one set of inputs."""
    rows = [r for r in rows if r["paper"] == paper]
    rows = [r for r in rows if all(r["inputs"][name] == value for name, value in inputs.items())]
    found = {r["quantity"]: r for r in rows}
    assert len(found) == len(rows), "more than one set of inputs"
    return found


def ceil_ln(ln):
    """ln of the next integer; beyond 10^15 integers are closer together than doubles."""
    return math.log(math.ceil(math.exp(ln))) if ln < 15 * LN10 else ln


def add_ln(*terms):
    most = max(terms)
    return most + math.log(sum(math.exp(t - most) for t in terms))


def subgen(n, d, v_dim, r, delta, epsilon, clusters, c_t, c_s, **_):
    """Natural logarithms of the sizes in Corollary 1."""
    t = ceil_ln(math.log(c_t) - 2 * math.log(epsilon) + 2 * delta * r + math.log(math.log(n)))
    s = math.log(math.ceil(c_s * d / (epsilon * epsilon)))
    keys = add_ln(t, 0) + math.log(clusters)
    return {
        "t": t,
        "s": s,
        "stored_rows": add_ln(keys, s),
        "memory": add_ln(keys + math.log(d), s + math.log(d + v_dim), math.log(clusters + 1)),
        "time_per_token": math.log(d) + add_ln(math.log(clusters) + t, s),
        "error": math.log(epsilon),
        "numerator_rms_error": -s / 2,
        "t_growth": math.log(2 * delta * r / math.log(n)),
        "clusters_per_token": math.log(clusters / n),
    }


def balancekv(
    n, d, v_dim, r, epsilon, failure, query_norm, key_norm, value_norm, c_batch, c_discrepancy, **_
):
    """Natural logarithms of Theorems 3.1-3.5, except for the levels, which may be 0."""
    root = math.sqrt(d)
    t = ceil_ln(
        math.log(c_batch / epsilon)
        + 2 * math.log(math.log(v_dim * n))
        + math.log(v_dim) / 2
        + 2 * r * r / root
    )
    levels = 0 if t >= math.log(n) else max(0, math.ceil(math.log2(n / round(math.exp(t)))))
    pairs = t + math.log(levels + 1)
    buckets = 1 + (math.log(2 * n / epsilon) + r * r / root) / math.log(2)
    return levels, {
        "key_logit": math.log(key_norm**2 / root),
        "largest_logit": math.log(r * r / root),
        "t": t,
        "pairs": pairs,
        "buckets": math.log(buckets),
        "stored_rows": pairs + math.log(buckets + 1),
        "time_per_step": 2 * t,
        "error": math.log(epsilon),
        "softmax_balance_discrepancy": math.log(
            c_discrepancy * math.sqrt(v_dim) * math.log(n * v_dim / failure) * value_norm
        )
        + (query_norm**2 + key_norm**2) / (2 * root),
        "merge_and_reduce_error": math.log(epsilon * n * value_norm) - r * r / root,
    }


def walk(n, d, r, failure, c_walk):
    c = 30 * math.log(n / failure)
    return {
        "c": c,
        "failure_threshold": c * r * r,
        "discrepancy": c_walk * math.log(n / failure) * r,
        "coin_discrepancy": math.sqrt(n),
        "crossover": c * d / 2,
        "plateau": math.sqrt(c / 2),
    }


def buzz(variant, sinks, window, stride, threshold, prompt_tokens):
    """Sizes, by counting the tokens in the lists after each pass."""
    fires = threshold + (variant == "reference")
    half = (stride + 1) // 2

    def one_pass(old, new):
        return len(range(0, old, half)) + len(range(0, new, stride))

    kept, seen = one_pass(0, fires), []
    while kept not in seen:
        seen.append(kept)
        kept = one_pass(kept, fires - kept)
    cycle = seen[seen.index(kept) :]
    ends = sinks + window
    middle = prompt_tokens - ends
    after = ends + one_pass(0, middle) if middle >= fires else prompt_tokens
    star = threshold / (stride * (1 - 1 / half + 1 / stride))
    return {
        "first_pass": seen[0],
        "after_prompt": after,
        "pass_low": min(cycle),
        "pass_high": max(cycle),
        "fixed_point": star,
        "peak_attended": ends + fires,
        "peak_attended_single_pass": max(ends + fires, after + 1),
        "low_point": ends + star + 1,
        "mean_size": ends + (star + threshold) / 2,
        "threshold_to_window": (stride**2 + 1) / (stride + 1) if stride % 2 else stride - 1,
    }


def check_values(rows, expected):
    assert set(rows) == set(expected)
    for name, value in expected.items():
        assert rows[name]["value"] == pytest.approx(value, rel=CLOSE), name
        assert rows[name]["log10_value"] == pytest.approx(math.log10(value), rel=CLOSE, abs=1e-12), name


def check_logs(rows, expected):
    assert set(rows) == set(expected)
    for name, ln in expected.items():
        row = rows[name]
        assert row["log10_value"] == pytest.approx(ln / LN10, rel=CLOSE, abs=1e-12), name
        if -300 < ln / LN10 < 15:
            assert row["value"] == pytest.approx(math.exp(ln), rel=1e-7), name  # exp of up to 690
        else:
            assert row["value"] is None, name


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--n", 1000000, "--d", 2, "--r", 0.5, "--delta", 0.1, "--epsilon", 0.9, "--clusters", 3],
        ["--n", 1024, "--d", 80, "--v-dim", 128, "--r", 30, "--delta", 12, "--epsilon", 0.01],
        [
            "--r",
            200,
            "--delta",
            3000,
            "--constant",
            "c_t=2.5",
            "--constant",
            "c_s=0.5",
            "--constant",
            "c_batch=7",
        ],
        [
            "--query-norm",
            3,
            "--key-norm",
            9,
            "--value-norm",
            0.3,
            "--failure",
            0.01,
            "--constant",
            "c_discrepancy=4",
        ],
    ],
)
def test_subgen_and_balancekv_are_their_formulas_in_logarithms(words):
    papers = ["subgen", "balancekv"] if "--query-norm" not in words else ["balancekv"]
    rows = bounds(*papers, *words)
    if "subgen" in papers:
        found = by_quantity(rows, "subgen")
        check_logs(found, subgen(**found["t"]["inputs"]))
        assert found["error"]["holds_with_probability"] == 0.99
    found = by_quantity(rows, "balancekv")
    levels, expected = balancekv(**found["t"]["inputs"])
    assert found["levels"]["value"] == levels
    del found["levels"]
    check_logs(found, expected)
    keeps = "keeps everything: t >= n" in found["t"]["note"]
    assert keeps == (found["t"]["log10_value"] >= math.log10(found["t"]["inputs"]["n"]))


def test_a_batch_smaller_than_n_is_halved_and_does_not_keep_everything():
    found = by_quantity(
        bounds("balancekv", "--n", 10**6, "--d", 1, "--r", 0, "--epsilon", 1, "--key-norm", 1), "balancekv"
    )
    assert found["t"]["value"] == 191  # ceil(ln(10^6)^2)
    assert found["levels"]["value"] == 13
    assert all("keeps everything" not in row["note"] for row in found.values())
    assert found["largest_logit"]["log10_value"] is None  # logarithm of 0
    assert found["largest_logit"]["value"] == 0


def test_the_walk_and_buzz_are_their_formulas():
    rows = bounds("walk", "buzz", "--failure", "0.01", "--stride", "3,4,5,8,11", "--threshold", "200,125",
                  "--window", "37,50", "--r", 2, "--constant", "c_walk=3")  # fmt: skip
    found = by_quantity(rows, "walk")
    check_values(found, walk(**found["c"]["inputs"]))
    assert found["c"]["inputs"]["c_walk"] == 3
    cases = {json.dumps(r["inputs"]) for r in rows if r["paper"] == "buzz"}
    assert len(cases) == 2 * 5 * 2 * 2
    for case in map(json.loads, cases):
        check_values(by_quantity(rows, "buzz", **case), buzz(**case))


def test_buzz_has_the_sizes_of_its_paper_and_no_bound_for_small_strides():
    fixed = {}
    for row in bounds("buzz", "--stride", "5,4,3", "--threshold", 200, "--variant", "reference"):
        if row["quantity"] == "pass_high":
            fixed[row["inputs"]["stride"]] = row["value"]
    assert fixed == {5: 47, 4: 68, 3: 81}
    single = bounds(
        "buzz", "--sinks", 4, "--window", 50, "--stride", 3, "--threshold", 125, "--prompt-tokens", 900
    )
    peaks = [r["value"] for r in single if r["quantity"] == "peak_attended_single_pass"]
    assert peaks == [337, 337]
    small = by_quantity(bounds("buzz", "--stride", 2, "--variant", "paper"), "buzz")
    assert small["peak_attended"]["value"] is None
    assert "unbounded" in small["peak_attended"]["note"]


def test_sizes_of_caches_by_hand():
    rows = bounds(
        "h2o", "streaming_llm", "kernel_halving", "--n-layers", 30, "--n-kv-heads", 3, "--g", 2, "--n", 1024
    )
    h2o = by_quantity(rows, "h2o")
    assert h2o["greedy_ratio_line"]["value"] == pytest.approx(1 - math.exp(-1))
    assert h2o["cache_bytes"]["value"] == 2 * 30 * 3 * 256 * 64 * 2
    assert h2o["int4_cache_bytes"]["value"] == 0.28125 * h2o["cache_bytes"]["value"]
    assert by_quantity(rows, "streaming_llm")["cache_bytes"]["value"] == h2o["cache_bytes"]["value"]
    halving = by_quantity(rows, "kernel_halving")
    assert halving["tokens"]["value"] == pytest.approx(4 * 32)
    assert halving["error_order"]["value"] == pytest.approx(math.log(1024) / 128)


def test_recorded_walks_and_buzz_caches_stay_at_their_bounds():
    with h5py.File(ORACLE) as f:
        for case in f["cases"].values():
            recorded = case["results/sbwalk"].attrs
            found = by_quantity(
                bounds("walk", "--n", case.attrs["n"], "--failure", recorded["delta"]), "walk"
            )
            assert found["c"]["value"] == pytest.approx(recorded["c"], rel=1e-14)
            recorded = case["results/buzz"].attrs
            words = [x for name in ("window", "stride") for x in (f"--{name}", recorded[name])]
            words += ["--sinks", recorded["sink"], "--threshold", recorded["T"], "--variant", "paper"]
            found = by_quantity(bounds("buzz", *words), "buzz")
            assert found["peak_attended"]["value"] == recorded["metric_peak_attended"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("bounds") / "t.h5"
    write_trace(path, SHAPES["grouped"])
    return path


def largest(x):
    return float(np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1)).max())


def clusters(keys, delta):
    representatives = []
    for key in keys.astype(np.float64):
        if all(np.sqrt(((key - r) ** 2).sum()) > delta for r in representatives):
            representatives.append(key)
    return len(representatives)


def test_a_trace_gives_each_head_its_norms_distances_and_clusters(trace):
    shape = SHAPES["grouped"]
    rows = bounds(
        "subgen", "balancekv", "walk", "--trace", trace, "--prompt", "b-second", "--delta-rel", "0.4,0.8"
    )
    for (prompt, layer, kv_head), head in heads(shape).items():
        if prompt != "b-second":
            continue
        here = [r for r in rows if (r["layer"], r["kv_head"]) == (layer, kv_head)]
        assert len(here) == 2 * 9 + 11 + 6
        median = median_distance(head.k.astype(np.float64), prompt=1, layer=layer, kv_head=kv_head)
        for f in (0.4, 0.8):
            t = by_quantity(here, "subgen", delta_rel=f)["t"]["inputs"]
            assert t["n"] == shape.n
            assert t["r"] == pytest.approx(shape.scale * largest(head.q), rel=CLOSE)
            assert t["median_key_distance"] == pytest.approx(median, rel=CLOSE)
            assert t["delta"] == pytest.approx(f * median, rel=CLOSE)
            assert t["clusters"] == clusters(head.k, t["delta"])
        found = by_quantity(here, "balancekv")
        inputs = found["t"]["inputs"]
        assert inputs["key_norm"] == pytest.approx(largest(head.k), rel=CLOSE)
        assert inputs["query_norm"] == pytest.approx(largest(head.q), rel=CLOSE)
        assert inputs["value_norm"] == pytest.approx(largest(head.v), rel=CLOSE)
        assert inputs["r"] == max(inputs["key_norm"], inputs["query_norm"])
        levels, expected = balancekv(**inputs)
        assert found.pop("levels")["value"] == levels
        check_logs(found, expected)
        assert by_quantity(here, "walk")["c"]["inputs"]["r"] == inputs["key_norm"]


def test_fewer_tokens_layers_heads_and_absolute_radii_of_a_trace(trace):
    shape = SHAPES["grouped"]
    rows = bounds("subgen", "--trace", trace, "--layers", 7, "--kv-heads", 1, "--tokens", 50, "--delta", 2)
    assert {(r["layer"], r["kv_head"]) for r in rows} == {(7, 1)}
    inputs = rows[0]["inputs"]
    assert inputs["n"] == 50
    assert "delta_rel" not in inputs
    keys = heads(shape)["a-first", 7, 1].k[:50]
    assert inputs["clusters"] == clusters(keys, 2)
    once = bounds("buzz", "h2o", "--trace", trace)
    assert {r["layer"] for r in once} == {None}
    assert {r["inputs"]["n_kv_heads"] for r in once if r["paper"] == "h2o"} == {2}
    assert {r["inputs"]["bytes"] for r in once if r["paper"] == "h2o"} == {4}
    wide = bounds("h2o", "--trace", trace, "--bytes", 2)
    assert {r["inputs"]["bytes"] for r in wide} == {2}


def test_subgen_stream_reports_the_bound_that_the_command_prints(trace, tmp_path):
    """The cell and the command share one implementation: both bounds come from equal measured numbers."""
    done = kvreplay("run", trace, "--method", "subgen_stream", "--prefill", 109, "--prompts", "b-second",
                    "--seeds", 1, "-s", "methods.0.delta_rel=0.4", "-s", "methods.0.epsilon=0.3",
                    "-o", tmp_path / "out",
                    "--progress", "none")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = bounds("subgen", "--trace", trace, "--prompt", "b-second", "--delta-rel", 0.4, "--epsilon", 0.3)
    asked = {r["kv_head"]: r["log10_value"] for r in rows if r["quantity"] == "stored_rows"}
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        cells = {int(c["kv_head"]): float(c["bound_log10_tokens"]) for c in csv.DictReader(file)}
    assert cells == pytest.approx(asked, rel=1e-12)


def test_csv_and_json_agree(trace):
    words = ["subgen", "buzz", "balancekv", "--trace", trace, "--epsilon", "0.1,0.5"]
    table = list(csv.DictReader(io.StringIO(kvreplay("bounds", *words, "--csv").stdout)))
    rows = bounds(*words)
    assert len(table) == len(rows)
    assert list(table[0])[:4] == ["paper", "quantity", "layer", "kv_head"]
    assert list(table[0])[-5:] == ["log10_value", "value", "unit", "holds_with_probability", "note"]

    def same(text, value):
        return (
            text == "" if value is None else text == value if isinstance(value, str) else float(text) == value
        )

    inputs = list(table[0])[4:-5]
    for line, row in zip(table, rows, strict=True):
        assert all(same(line[name], row["inputs"].get(name)) for name in inputs)
        assert all(same(line[name], row[name]) for name in row if name != "inputs")


def test_the_table_holds_every_quantity_and_shows_large_sizes_as_logarithms_only():
    done = kvreplay("bounds", "--r", 20, "--delta", 5)
    assert done.returncode == 0
    for row in bounds("--r", 20, "--delta", 5):
        assert row["quantity"] in done.stdout
    line = next(x for x in done.stdout.splitlines() if x.startswith("t  "))
    assert line.split()[:3] == ["t", "89.779", "-"]
    assert "nan" not in done.stdout
    assert "inf" not in done.stdout


def test_extreme_inputs_are_numbers_or_empty_never_nan():
    rows = bounds("--n", "2,1e150", "--r", "0,1e100", "--delta", "0,1e100", "--epsilon", "1e-100,1",
                  "--clusters", "1,1e150", "--d", "1,1073741824", "--failure", "1e-300,1",
                  "--threshold", "1,1073741824", "--window", 1, "--stride", "1,3,32768",
                  "--g", 60)  # fmt: skip
    assert len(rows) > 1000  # the JSON parser would have refused a NaN
    for row in rows:
        for name in ("log10_value", "value"):
            assert row[name] is None or math.isfinite(row[name])
        assert row["value"] is None or abs(row["value"]) < 1e15


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["buz"], "buz: no such paper (did you mean buzz?)"),
        (["--epsilon", "2"], "--epsilon 2: must be a number from 1e-100 to 1"),
        (["--epsilon", "0.1,x"], "--epsilon x: must be a number"),
        (["--epsilon", "nan"], "--epsilon nan: must be a number"),
        (["--n", "1.5"], "--n 1.5: must be a whole number from 2"),
        (["--n", ""], "--n : must be a whole number"),
        (["--r=-1"], "--r -1: must be a number from 0"),
        (["--epsilonn", "0.1"], "did you mean --epsilon?"),
        (
            ["--variant", "pape"],
            "--variant pape: must be reference, paper or both with a comma (did you mean paper?)",
        ),
        (
            ["buzz", "--r", "3"],
            "--r 3: no paper that you chose has it; leave it out, or add subgen, balancekv, walk",
        ),
        (["--constant", "c_u=2"], "--constant c_u=2: there is no constant c_u"),
        (["--constant", "c_t"], "--constant c_t: give NAME=VALUE"),
        (["--constant", "c_t=0"], "--constant c_t=0: give NAME=VALUE with a value from"),
        (
            ["buzz", "--constant", "c_t=2"],
            "--constant c_t=2: no paper that you chose has it; leave it out, or add subgen",
        ),
        (["--layers", "3"], "--layers 3: selects from a trace; add --trace FILE"),
        (["--csv", "--json"], "excludes"),
        (["--n", ",".join(["5"] * 400), "--d", ",".join(["5"] * 400)], "combinations"),
    ],
)
def test_a_wrong_option_is_exit_2_and_reported_with_value_and_remedy(words, message):
    done = kvreplay("bounds", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "3"], "--n 3: is measured with --trace; leave one of the two out"),
        (["--layers", "0"], "--layers 0: the trace does not have it. It holds 7"),
        (["--kv-heads", "2"], "--kv-heads 2: the trace does not have it. It holds 0, 1"),
        (["--prompt", "c"], "--prompt c: the trace has no such prompt. It holds a-first, b-second"),
        (["--tokens", "164"], "--tokens 164: prompt a-first has 163"),
        (["--delta", "1", "--delta-rel", "0.5"], "--delta-rel 0.5: excludes --delta 1"),
        (["walk", "--delta-rel", "0.5"], "--delta-rel 0.5: no paper that you chose has it"),
    ],
)
def test_a_wrong_selection_of_a_trace_is_exit_2(trace, words, message):
    done = kvreplay("bounds", "--trace", trace, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr


def test_a_missing_trace_is_exit_3(tmp_path):
    done = kvreplay("bounds", "--trace", tmp_path / "no.h5")
    assert done.returncode == 3
    assert "no such file" in done.stderr


def test_help_shows_examples_that_run():
    text = kvreplay("bounds", "--help").stdout
    examples = [x.split("#")[0].split() for x in text.splitlines() if x.startswith("  kvreplay bounds")]
    assert len(examples) >= 3
    for words in examples:
        if "--trace" not in words:
            assert kvreplay(*words[1:]).returncode == 0, words
