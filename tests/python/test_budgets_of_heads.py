"""Budgets calibrated on other prompts, streaming heads together with heads that are cut, and budget files."""

import json
import shutil

import h5py
import numpy as np
import pytest
import yaml
from engine_cases_later_methods import layers_of, write_files
from kvreplay_cli import kvreplay, table
from reference import budgets
from reference.output_aware import projected_norms
from reference.snapkv import snapkv_scores
from token_lists import ragged

B, WINDOW, KERNEL = 41, 8, 5
SNAP = {"name": "snapkv", "window": WINDOW, "kernel": KERNEL}
TEXTS = "abc"


def lu_kv(**words):
    return {**SNAP, "allocator": {"name": "lu_kv", **words}}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Three prompts a, b and c of one trace; c is shorter."""
    folder = tmp_path_factory.mktemp("texts")
    for text in TEXTS:
        (folder / text).mkdir()
        write_files(folder / text, f"text_{text}")
    path = folder / "a" / "t.h5"
    with h5py.File(path, "r+") as f:
        f.move("prompts/p0", "prompts/a")
        for text in TEXTS[1:]:
            with h5py.File(folder / text / "t.h5") as other:
                other.copy("prompts/p0", f["prompts"], name=text)
    return path


def config(trace, method, folder, budget=B, **more):
    file = folder / "config.yaml"
    entries = {
        "schema": 1,
        "traces": [str(trace)],
        "methods": method if isinstance(method, list) else [method],
        "budget": {"tokens": [budget]},
        "output": {"dir": str(folder / "out"), "save": ["kept"]},
        "run": {"precision": "double"},
        **more,
    }
    file.write_text(yaml.safe_dump(entries))
    return file


def run(trace, method, folder, **more):
    """Runs a configuration; returns {(prompt, layer, kv head): (row, lists of kept tokens)}."""
    done = kvreplay("run", config(trace, method, folder, **more), "--progress", "none", "--force")
    assert done.returncode == 0, done.stderr
    found = {}
    with h5py.File(folder / "out/kept.h5") as f:
        for row in table(folder / "out"):
            at = (row["prompt"], int(row["layer"]), int(row["kv_head"]))
            found[at] = (row, ragged(f[row["key"]], "kept"))
    return found


def extras(row):
    return json.loads(row["extras"])


def heads_of(text):
    return [head for layer in layers_of(f"text_{text}") for head in layer]


def scored(text):
    """(heads, SnapKV's scores, protected tokens) of a prompt."""
    heads = heads_of(text)
    scores = [
        np.append(snapkv_scores(h, WINDOW, KERNEL, "max", "sum", "before"), np.zeros(WINDOW)) for h in heads
    ]
    return heads, scores, np.arange(heads[0].P) >= heads[0].P - WINDOW


def by_place(text, tokens):
    heads = heads_of(text)
    return {(text, h.layer, h.kv_head): int(t) for h, t in zip(heads, tokens, strict=True)}


def cut_to(found):
    return {at: len(lists[0]) for at, (_, lists) in found.items()}


# --- LU-KV over other prompts -----------------------------------------------------------------------


@pytest.mark.parametrize("weight", ["mass", "contrib"])
def test_every_prompt_is_shared_by_the_curves_of_the_others(trace, tmp_path, weight):
    found = run(trace, lu_kv(weight=weight), tmp_path)
    norms = projected_norms if weight == "contrib" else None
    wanted = {}
    for text in TEXTS:
        others = [scored(other) for other in TEXTS if other != text]
        learned = budgets.lu_kv_learned(others, B, heads_of(text)[0].P, WINDOW, norms)
        assert learned.sum() == B * len(learned)
        wanted |= by_place(text, learned)
    assert cut_to(found) == wanted
    assert len(set(wanted.values())) > 6, "every head got the same: nothing is tested"
    assert {extras(row)["offline"] for row, _ in found.values()} == {1}


def test_an_allocator_without_options_uses_defaults(trace, tmp_path):
    for folder in "xy":
        (tmp_path / folder).mkdir()
    bare = run(trace, {**SNAP, "allocator": "lu_kv"}, tmp_path / "x")
    given = run(trace, lu_kv(calibration="others", weight="mass", lo="protected"), tmp_path / "y")
    assert [row["key"] for row, _ in bare.values()] == [row["key"] for row, _ in given.values()]


def test_one_prompt_calibrates_the_others_for_any_selection(trace, tmp_path):
    found = run(
        trace, lu_kv(calibration="prompt:c", lo=10), tmp_path, select={"prompts": ["a"], "layers": [1]}
    )
    wanted = by_place("a", budgets.lu_kv_learned([scored("c")], B, 131, 10))
    assert cut_to(found) == {at: tokens for at, tokens in wanted.items() if at[1] == 1}


def test_unmeasured_rows_still_calibrate(trace, tmp_path):
    found = run(
        trace,
        lu_kv(calibration="prompt:b"),
        tmp_path,
        select={"prompts": ["a"]},
        replay={"queries": {"last": 2}},
    )
    assert cut_to(found) == by_place("a", budgets.lu_kv_learned([scored("b")], B, 131, WINDOW))


def test_calibration_on_the_replayed_prompt_is_marked_as_using_the_future(trace, tmp_path):
    found = run(trace, lu_kv(calibration="self"), tmp_path, select={"prompts": ["a"]})
    assert cut_to(found) == by_place("a", budgets.lu_kv_budgets(*scored("a"), B))
    assert {(extras(row)["sees_future"], "offline" in extras(row)) for row, _ in found.values()} == {
        (1, False)
    }


def test_another_length_of_the_calibration_prompt_is_another_cell(trace, tmp_path):
    method, select = lu_kv(calibration="prompt:b"), {"prompts": ["a"]}
    whole = run(trace, method, tmp_path, select=select)
    part = run(trace, method, tmp_path, select=select, replay={"tokens": heads_of("a")[0].q.shape[1]})
    for (row, _), (other, _) in zip(whole.values(), part.values(), strict=True):
        assert row["n_tokens"] == other["n_tokens"]
    assert not {row["key"] for row, _ in whole.values()} & {row["key"] for row, _ in part.values()}


REFUSED = [
    ({"calibration": "prompt:a"}, {}, "learns from prompt a, which is replayed too"),
    ({"calibration": "prompt:d"}, {"select": {"prompts": ["a"]}}, "learns from prompt d, which"),
    ({"calibration": "prompt:"}, {}, "must be others"),
    ({"calibration": "future"}, {}, "must be others"),
    (
        {},
        {"select": {"prompts": ["a"]}, "replay": {"prefill": 120}},
        "learns from decode rows, which a prompt lacks (prompt c)",
    ),
]


@pytest.mark.parametrize(("words", "more", "said"), REFUSED, ids=[str(w) for w, _, _ in REFUSED])
def test_an_unsuitable_calibration_prompt_is_refused_with_the_remedy(trace, tmp_path, words, more, said):
    done = kvreplay("validate", config(trace, lu_kv(**words), tmp_path, **more))
    assert done.returncode == 2, done.stdout
    assert said in done.stderr


def test_a_trace_of_one_prompt_has_no_others_for_calibration(tmp_path):
    write_files(tmp_path, "text_a")
    done = kvreplay("validate", config(tmp_path / "t.h5", {**SNAP, "allocator": "lu_kv"}, tmp_path))
    assert done.returncode == 2
    assert (
        "holds prompt p0 alone: record more prompts, or write {name: lu_kv, calibration: self}" in done.stderr
    )


# --- DuoAttention and HeadKV ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [{}, {"rule": "area", "length": 100}, {"stream_frac": 0.2}, {"stream_frac": 1.0, "recent": 37}],
    ids=str,
)
def test_heads_with_short_reach_stream_and_the_others_share_the_remaining_tokens(trace, tmp_path, words):
    ends = {"sinks": 4, "recent": 12, **{k: v for k, v in words.items() if k == "recent"}}
    found = run(trace, {**SNAP, "allocator": {"name": "duo", **words, **ends}}, tmp_path)
    streaming = {"name": "streaming_llm", "sinks": ends["sinks"], "positions": "original"}
    alone = run(trace, streaming, tmp_path, budget=sum(ends.values()))
    for text in TEXTS:
        heads, scores, protected = scored(text)
        by_area = words.get("rule") == "area"
        far = [budgets.duo_area(h, 100) if by_area else budgets.duo_mass(h, **ends) for h in heads]
        tokens, streams = budgets.duo_budgets(far, B, words.get("stream_frac", 0.5), **ends)
        for head, s, size, narrow in zip(heads, scores, tokens, streams, strict=True):
            row, lists = found[text, head.layer, head.kv_head]
            width = head.d + head.dv
            assert row["method"] == "snapkv"
            assert extras(row)["allocated_tokens"] == size
            assert extras(row)["streams"] == narrow
            assert extras(row)["allocated_excess"] == 0
            if narrow:
                steps = range(head.P, head.P + len(lists))
                ends_at = [[*range(ends["sinks"]), *range(t - ends["recent"], t)] for t in steps]
                assert [kept.tolist() for kept in lists] == ends_at
                same = ("peak_bytes", "final_bytes", "aux_bytes", "total_bytes", "rel_err_out_mean")
                charged, _ = alone[text, head.layer, head.kv_head]
                assert [row[column] for column in same] == [charged[column] for column in same]
            else:
                wanted = np.sort(budgets.keep_order(s, protected)[:size])
                assert lists[0].tolist() == wanted.tolist()
                assert int(row["peak_bytes"]) == (size + head.q.shape[1] - head.P) * width * 4


def test_streaming_heads_that_leave_nothing_are_refused(trace, tmp_path):
    method = {**SNAP, "allocator": {"name": "duo", "sinks": 40, "recent": 42}}
    done = kvreplay("run", config(trace, method, tmp_path), "--progress", "none")
    assert done.returncode == 2
    assert (
        "leaves the others nothing of a budget of 41 a head: make sinks, recent or stream_frac smaller"
        in done.stderr
    )


# --- DuoAttention by a file of gates ----------------------------------------------------------------

# In ascending order: 0.1 (layer 2), 0.2 (layer 0), 0.5 and 0.5 (layer 1), 0.7, 0.9.
GATES = "9.0e-01\t2.0e-01\n5.0e-01\t5.0e-01\n1.0e-01\t7.0e-01\n"


def streaming_of(found):
    return {(layer, head) for (_, layer, head), (row, _) in found.items() if extras(row)["streams"] == 1}


@pytest.mark.parametrize(
    ("frac", "streams"),
    [
        (0.0, set()),
        (0.2, {(2, 0)}),  # the quantile is the second of six gates: one lies below it
        (0.3, {(2, 0), (0, 1)}),
        (0.5, {(2, 0), (0, 1), (1, 0)}),  # halfway between two equal gates: the tie goes to the lower kv head
        (0.9, {(2, 0), (0, 1), (1, 0), (1, 1), (2, 1)}),
        (1.0, {(layer, head) for layer in range(3) for head in range(2)}),
    ],
)
def test_heads_with_small_gates_stream_and_the_others_keep_everything(trace, tmp_path, frac, streams):
    (tmp_path / "full_attention_heads.tsv").write_text(GATES)
    method = {"name": "duo_attention", "gates": "full_attention_heads.tsv", "stream_frac": frac}
    found = run(trace, {**method, "sinks": 4, "recent": 12}, tmp_path, select={"prompts": ["a"]})
    assert streaming_of(found) == streams
    for (_, layer, head), (row, lists) in found.items():
        P = int(row["n_prefill"])
        for t, kept in enumerate(lists, P):
            ends = [*range(4), *range(t - 12, t)]
            assert kept.tolist() == (ends if (layer, head) in streams else list(range(t)))


def test_a_trace_of_some_layers_takes_its_rows_of_the_gates(trace, tmp_path):
    (tmp_path / "gates.tsv").write_text(GATES.replace("1.0e-01", "-1.2e-03").replace("9.0e-01", "1.0003"))
    method = {"name": "duo_attention", "gates": "gates.tsv", "sinks": 4, "recent": 12, "stream_frac": 0.3}
    path = tmp_path / "two.h5"
    shutil.copy(trace, path)
    with h5py.File(path, "r+") as f:
        del f["prompts/a/layers/000"]
    found = run(path, method, tmp_path, select={"prompts": ["a"]})
    assert set(found) == {("a", layer, head) for layer in (1, 2) for head in range(2)}
    assert streaming_of(found) == {(2, 0)}  # head 1 of layer 0 would be the other


def test_the_allocator_duo_takes_the_gates_too(trace, tmp_path):
    (tmp_path / "gates.tsv").write_text(GATES)
    rule = {"name": "duo", "gates": "gates.tsv", "stream_frac": 0.3, "sinks": 4, "recent": 12}
    found = run(trace, {**SNAP, "allocator": rule}, tmp_path, select={"prompts": ["a"]})
    assert streaming_of(found) == {(2, 0), (0, 1)}
    # Six heads share 6 * 41 tokens; two hold 16 each, and the other four 214: 53.5.
    given = {at[1:]: extras(row)["allocated_tokens"] for at, (row, _) in found.items()}
    assert given == {(0, 0): 54, (0, 1): 16, (1, 0): 54, (1, 1): 53, (2, 0): 16, (2, 1): 53}


WRONG_GATES = [
    (GATES + "0.5\n", ":4: holds 1 gates, and layer 3 has 2 kv heads: take the file of this model"),
    (GATES.replace("\t5.0e-01", "\t0.5\t0.5"), ":2: holds 3 gates, and layer 1 has 2 kv heads"),
    (
        "0.9\t0.2\n0.5\t0.5\n",
        ": holds gates of 2 layers, and the trace has layer 2: take the file of this model",
    ),
    (
        GATES.replace("7.0e-01", "seven"),
        ':3: "seven" is not a number: write the gate of each kv head, from 0 to 1',
    ),
    (GATES.replace("7.0e-01", "nan"), ":3: nan is not a gate: write a number from 0 to 1 for each kv head"),
    (GATES.replace("9.0e-01", "90"), ":1: 90 is not a gate: write a number from 0 to 1 for each kv head"),
    (GATES.replace("9.0e-01", "-0.2"), ":1: -0.2 is not a gate: write a number from 0 to 1 for each kv head"),
]


@pytest.mark.parametrize(("text", "said"), WRONG_GATES, ids=[said for _, said in WRONG_GATES])
def test_wrong_gates_are_one_error_with_file_line_and_value(trace, tmp_path, text, said):
    (tmp_path / "gates.tsv").write_text(text)
    method = {"name": "duo_attention", "gates": "gates.tsv", "sinks": 4, "recent": 12}
    done = kvreplay("run", config(trace, method, tmp_path, select={"prompts": ["a"]}), "--progress", "none")
    assert done.returncode == 2
    assert f"{tmp_path / 'gates.tsv'}{said}" in done.stderr
    assert done.stderr.count("gates.tsv") == 1


def test_gates_that_are_not_there_are_reported_before_the_run(trace, tmp_path):
    done = kvreplay("validate", config(trace, {"name": "duo_attention", "gates": "none.tsv"}, tmp_path))
    assert done.returncode == 2
    assert f"no file {tmp_path / 'none.tsv'} (the path is relative to" in done.stderr
    assert "gates: file of trained gates" in done.stderr


def test_other_gates_are_another_cell(trace, tmp_path):
    for method in (
        {"name": "duo_attention", "gates": "gates.tsv", "sinks": 4, "recent": 12},
        {**SNAP, "allocator": {"name": "duo", "gates": "gates.tsv", "sinks": 4, "recent": 12}},
    ):
        keys = []
        for text in (GATES, GATES.replace("9.0e-01", "3.0e-01")):
            (tmp_path / "gates.tsv").write_text(text)
            found = run(trace, method, tmp_path, select={"prompts": ["a"]})
            keys.append({row["key"] for row, _ in found.values()})
        assert not keys[0] & keys[1]


@pytest.mark.parametrize("words", [{}, {"beta": 1.005}, {"beta": 3, "temp": 2}], ids=str)
def test_headkv_adds_a_pool_by_importance_and_reports_the_rounding_excess(trace, tmp_path, words):
    ends = {"sinks": 4, "recent": 12}
    found = run(trace, {**SNAP, "allocator": {"name": "headkv", **words, **ends}}, tmp_path)
    missed = []
    for text in TEXTS:
        heads = heads_of(text)
        tokens = budgets.headkv_budgets([budgets.duo_mass(h, **ends) for h in heads], B, WINDOW, **words)
        tokens = np.minimum(tokens, heads[0].P)
        missed.append(tokens.sum() - B * len(heads))
        for at, size in by_place(text, tokens).items():
            row, lists = found[at]
            assert len(lists[0]) == size
            assert extras(row)["allocated_excess"] == missed[-1]
    assert words or any(missed), "every sum is exact: the test checks nothing"


def test_headkv_takes_published_scores_of_query_heads(trace, tmp_path):
    rng = np.random.default_rng(1)
    scores = {f"{layer}-{h}": rng.random(3).tolist() for layer in range(3) for h in range(6)}
    scores["1-2"] = 0.25
    (tmp_path / "heads.json").write_text(json.dumps(scores))
    method = {**SNAP, "allocator": {"name": "headkv", "importance": "file:heads.json"}}
    found = run(trace, method, tmp_path, select={"prompts": ["a"]})
    of_heads = np.array([np.mean(scores[f"{layer}-{h}"]) for layer in range(3) for h in range(6)])
    tokens = budgets.headkv_budgets(of_heads.reshape(-1, 3).sum(axis=1), B, WINDOW)
    assert cut_to(found) == by_place("a", tokens)
    del scores["2-5"]
    (tmp_path / "heads.json").write_text(json.dumps(scores))
    done = kvreplay("run", tmp_path / "config.yaml", "--progress", "none", "--force")
    assert done.returncode == 2
    assert "holds no head 2-5: write a score for every query head" in done.stderr


@pytest.fixture
def windowed(trace, tmp_path):
    """The trace with a window of 20 tokens in layer 1 of prompt a, which has three layers of two kv heads."""
    path = tmp_path / "windowed.h5"
    shutil.copy(trace, path)
    with h5py.File(path, "r+") as f:
        f["prompts/a/layers/001"].attrs["sliding_window"] = 20
    return path


def test_layers_with_a_window_leave_their_share_to_the_others(windowed, tmp_path):
    """Half of 41 is 20. Layer 1 gets 2 * 20 of the 6 * 41 tokens; four heads share the other 206: 51 each."""
    method = {**SNAP, "allocator": "windows"}
    found = run(windowed, method, tmp_path, select={"prompts": ["a"]})
    given = {at: extras(row)["allocated_tokens"] for at, (row, _) in found.items()}
    assert {layer: tokens for (_, layer, _), tokens in given.items()} == {0: 51, 1: 20, 2: 51}
    alone = run(windowed, method, tmp_path, select={"prompts": ["a"], "layers": [2]})
    assert [extras(row)["allocated_tokens"] for row, _ in alone.values()] == [51, 51]
    quarter = {**SNAP, "allocator": {"name": "windows", "share": 0.25}}
    found = run(windowed, quarter, tmp_path, select={"prompts": ["a"]})
    # A quarter is 10; 226 tokens are 56 for each of four heads, and the remaining two go to layer 1.
    assert {extras(row)["allocated_tokens"] for row, _ in found.values()} == {11, 56}
    assert json.loads(next(iter(found.values()))[0]["given"])["allocator"] == {
        "name": "windows",
        "share": 0.25,
    }


@pytest.mark.parametrize(
    ("allocator", "said"),
    [
        ({"name": "windows", "share": 1.5}, "share is 1.5 and must be"),
        ({"name": "duo", "sinks": -1}, "sinks"),
        ({"name": "duo", "beta": 2}, "beta"),
        ({"name": "duo", "gates": "none.tsv"}, "none.tsv of gates, a line for each layer"),
        ({"name": "duo", "gates": "config.yaml", "rule": "mass"}, "leave it out with gates"),
        ({"name": "headkv", "beta": 0.5}, "beta is 0.5 and must be"),
        ({"name": "headkv", "importance": "needles"}, "must be mass"),
        ({"name": "headkv", "importance": "file:none.json"}, "no file"),
        ("headvk", "headkv"),
        ({"name": "ada", "floor": 1}, "must be a word"),
    ],
    ids=str,
)
def test_wrong_rules_are_refused_with_the_correct_form(trace, tmp_path, allocator, said):
    done = kvreplay("validate", config(trace, {**SNAP, "allocator": allocator}, tmp_path))
    assert done.returncode == 2
    assert said in done.stderr


# --- Budgets as a file ------------------------------------------------------------------------------

WRITTEN = [
    {"name": "lu_kv"},
    {"name": "lu_kv", "calibration": "self", "weight": "contrib"},
    {"name": "headkv", "sinks": 4, "recent": 12},
    "ada",
    "cake",
]


@pytest.mark.parametrize("allocator", WRITTEN, ids=str)
def test_a_file_of_budgets_gives_the_kept_sets_of_its_allocator(trace, tmp_path, allocator):
    select = {"prompts": ["b"]}
    method = {**SNAP, "allocator": allocator}
    in_place = run(trace, method, tmp_path, select=select)
    done = kvreplay("budgets", tmp_path / "config.yaml", "-o", tmp_path / "b.csv")
    assert done.returncode == 0, done.stderr
    by_file = run(trace, {**SNAP, "allocator": "file:b.csv"}, tmp_path, select=select)
    assert cut_to(in_place) == cut_to(by_file)
    assert len(set(cut_to(in_place).values())) > 1
    for at, (row, lists) in in_place.items():
        assert [kept.tolist() for kept in by_file[at][1]] == [kept.tolist() for kept in lists]
        assert by_file[at][0]["rel_err_out_mean"] == row["rel_err_out_mean"]


@pytest.mark.parametrize(
    ("method", "more", "said"),
    [
        ({**SNAP, "allocator": "ada"}, {}, "asks for 1 methods, 1 budgets, 3 prompts"),
        ([{**SNAP, "allocator": ["ada", "cake"]}], {"select": {"prompts": ["a"]}}, "asks for 2 methods"),
        (SNAP, {"select": {"prompts": ["a"]}}, "gives every head the same budget"),
        (
            {**SNAP, "allocator": {"name": "duo", "sinks": 4, "recent": 12}},
            {"select": {"prompts": ["a"]}},
            "stream",
        ),
    ],
    ids=["prompts", "methods", "uniform", "duo"],
)
def test_budgets_that_cannot_be_written_to_a_file_are_refused(trace, tmp_path, method, more, said):
    done = kvreplay("budgets", config(trace, method, tmp_path, **more), "--out", tmp_path / "b.csv")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "b.csv").exists()
