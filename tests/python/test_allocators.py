"""Budgets shared over heads and layers: sums, parts of a run, resumed runs, gqa.level."""

import json
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from kvreplay_cli import kvreplay, synth, table

P, B, LAYERS, HEADS, D = 320, 64, 3, 2, 16
SHARED = [
    {"name": "adakv"},
    {"name": "adakv", "variant": "reference"},
    {"name": "cake"},
    {"name": "snapkv", "allocator": "ada"},
    {"name": "h2o", "allocator": "cake"},
    {"name": "h2o", "allocator": "ada"},
    {"name": "window", "allocator": "pyramid"},
    {"name": "h2o", "allocator": "pyramid"},
    {"name": "chunkkv"},
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.h5"
    words = ["--q-heads", 4, "--kv-heads", HEADS, "--head-dim", D, "--v-head-dim", D]
    return synth(path, "--tokens", P + 40, "--prompt", P, "--layers", LAYERS, *words)


def run(trace, out, methods, *words, budget=B, **more):
    config = {
        "schema": 1,
        "traces": [str(trace)],
        "methods": methods,
        "budget": {"tokens": [budget]},
        "output": {"dir": str(out), "save": ["kept"]},
        **more,
    }
    file = Path(out).parent / f"{Path(out).name}.yaml"
    file.write_text(yaml.safe_dump(config))
    done = kvreplay("run", file, "--progress", "none", *words)
    assert done.returncode == 0, done.stderr
    return table(out)


def of(rows, method):
    return [row for row in rows if row["method"] == method]


def prompt_tokens(out, row):
    """Number of tokens kept after the prompt's cut."""
    with h5py.File(Path(out) / "kept.h5") as f:
        return f[row["key"]]["kept_flat"][: f[row["key"]]["kept_off"][1]]


@pytest.fixture(scope="module")
def whole(trace, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    return run(trace, out, SHARED)


def test_a_part_of_the_heads_gets_the_shares_of_the_whole(trace, whole, tmp_path):
    select = {"layers": [2], "kv_heads": [1]}
    rows = run(trace, tmp_path / "out", SHARED, select=select)
    assert len(rows) == len(SHARED)
    assert rows == [row for row in whole if row["layer"] == "2" and row["kv_head"] == "1"]


def test_a_resumed_run_gives_the_numbers_of_a_whole_one(trace, whole, tmp_path):
    assert run(trace, tmp_path / "out", SHARED, "-j", 1) == whole
    for shard in (tmp_path / "out/shards").glob("*.jsonl"):
        lines = shard.read_text().splitlines(keepends=True)
        shard.write_text("".join(lines[::3]))
    assert run(trace, tmp_path / "out", SHARED, "-j", 2) == whole


def test_adakv_keeps_the_budget_of_the_layer_exactly(trace, tmp_path):
    methods = [{"name": "adakv"}, {"name": "adakv", "alpha": 1}, {"name": "snapkv", "allocator": "ada"}]
    rows = run(trace, tmp_path / "out", methods)
    sizes = {}
    for row in rows:
        params = json.loads(row["params"])
        kept = len(prompt_tokens(tmp_path / "out", row))
        assert kept == json.loads(row["extras"])["allocated_tokens"] >= int(B * 0.2)
        assert int(row["peak_bytes"]) == (kept + 40) * 2 * D * 4
        sizes.setdefault((row["method"], params.get("alpha"), row["layer"]), []).append(kept)
    for (_, alpha, _), kept in sizes.items():
        assert sum(kept) == B * HEADS
        assert alpha != 1 or set(kept) == {B}
    assert len({tuple(kept) for kept in sizes.values()}) > 1, (
        "every head got an equal budget: the test checks nothing"
    )


def test_cake_spends_the_budget_of_the_model_to_the_last_token(whole):
    rows = of(whole, "cake")
    tokens = {row["layer"]: json.loads(row["extras"])["allocated_tokens"] for row in rows}
    assert len(set(tokens.values())) > 1
    assert sum(tokens.values()) == B * LAYERS
    for row in rows:  # rows of both kv heads of a layer
        assert json.loads(row["extras"])["allocated_tokens"] == tokens[row["layer"]]


def test_a_pyramid_holds_for_streaming_methods_and_what_follows_from_the_budget(whole):
    rows = [r for r in of(whole, "h2o") if json.loads(r["params"])["allocator"] == "pyramid"]
    sizes = [int(r["peak_kept_tokens"]) for r in sorted(rows, key=lambda r: int(r["layer"]))][::HEADS]
    assert sizes[0] > B > sizes[-1]
    assert all(a > b for a, b in pairwise(sizes))
    for row in rows:
        params = json.loads(row["params"])
        assert params["heavy"] + params["recent"] == int(row["peak_kept_tokens"])


def test_a_file_gives_each_head_its_number(trace, tmp_path):
    lines = [f"{layer},{h},{10 + 5 * layer + h}\n" for layer in range(LAYERS) for h in range(HEADS)]
    (tmp_path / "b.csv").write_text("".join(lines))
    method = {"name": "snapkv", "window": 4, "allocator": f"file:{tmp_path / 'b.csv'}"}
    for row in run(trace, tmp_path / "out", [method]):
        assert len(prompt_tokens(tmp_path / "out", row)) == 10 + 5 * int(row["layer"]) + int(row["kv_head"])


def test_two_files_are_two_methods_and_the_summary_names_every_entry(trace, tmp_path):
    for name, tokens in (("a", 20), ("b", 30)):
        (tmp_path / f"{name}.csv").write_text(f"{tokens},{tokens}\n" * LAYERS)
    files = [{"name": "snapkv", "allocator": f"file:{tmp_path / name}.csv"} for name in "ab"]
    rows = run(trace, tmp_path / "out", [*files, {"name": "adakv", "scorer": "snapkv"}])
    sizes = {len(prompt_tokens(tmp_path / "out", row)) for row in of(rows, "snapkv")}
    assert sizes == {20, 30}
    shown = kvreplay("run", tmp_path / "out.yaml", "--progress", "none").stdout
    assert all(word in shown for word in ("a.csv", "b.csv", "adakv"))
    assert "?" not in shown


def test_a_file_without_a_head_or_too_small_for_a_method_is_refused(trace, tmp_path):
    file = tmp_path / "b.csv"
    words = ["run", trace, "--budget", "64", "-o", tmp_path / "out"]

    def message(text, method):
        file.write_text(text)
        entry = f"methods=[{{name: {method}, allocator: 'file:{file}'}}]"
        done = kvreplay(*words, "-s", entry)
        assert done.returncode == 2
        return done.stderr

    assert "no tokens for layer 0, kv head 1" in message("0,0,12\n", "snapkv")
    short = "".join(f"{layer},{h},3\n" for layer in range(LAYERS) for h in range(HEADS))
    assert "gives it 3 tokens, and sinks 4" in message(short, "streaming_llm")


def test_everything_is_kept_if_it_fits_under_any_allocator(trace, tmp_path):
    for row in run(trace, tmp_path / "out", SHARED, budget=P + 60):
        assert row["n_evictions"] == "0", row["method"]


def test_gqa_level_layer_has_one_set_per_layer_and_query_one_per_query_head(trace, tmp_path):
    levels = ("kv", "layer", "query")
    methods = [{"name": n, "gqa": {"level": level}} for n in ("snapkv", "h2o") for level in levels]
    rows = run(trace, tmp_path / "out", methods)
    for name in ("snapkv", "h2o"):
        level = {}
        for row in of(rows, name):
            level.setdefault((json.loads(row["params"])["gqa.level"], row["layer"]), []).append(row)
        for layer in map(str, range(LAYERS)):
            kept = [prompt_tokens(tmp_path / "out", r) for r in level["layer", layer]]
            assert np.array_equal(kept[0], kept[1])
            alone = [prompt_tokens(tmp_path / "out", r) for r in level["kv", layer]]
            assert not np.array_equal(alone[0], alone[1])
            plain, shared, split = (level[way, layer][0] for way in ("kv", "layer", "query"))
            assert int(shared["peak_bytes"]) == int(plain["peak_bytes"])
            assert int(split["peak_bytes"]) == 2 * int(plain["peak_bytes"])  # two query heads per kv head
            # A layer's two kv heads share scores and positions.
            assert 2 * int(shared["aux_bytes"]) == int(plain["aux_bytes"])
            assert int(split["aux_bytes"]) == 2 * int(plain["aux_bytes"])


def test_prompts_that_stream_have_no_whole_prompt_to_share_by(trace, tmp_path):
    entry = "methods=[{name: h2o, allocator: ada}]"
    words = ["run", trace, "--budget", "64", "-o", tmp_path / "out"]
    done = kvreplay(*words, "-s", entry, "-s", "replay.prompt=stream")
    assert done.returncode == 2
    assert "looks at the whole prompt" in done.stderr


def test_a_layers_scores_leave_adakv_nothing_to_share(trace, tmp_path):
    words = ["run", trace, "--budget", "64", "-o", tmp_path / "out"]
    for variant in ("layer", "kvpress"):
        scorer = f"{{name: tova, variant: {variant}}}"
        done = kvreplay(*words, "-s", f"methods=[{{name: adakv, scorer: {scorer}}}]")
        assert done.returncode == 2
        assert "tova scores all kv heads of a layer alike" in done.stderr
        assert "use the method tova itself, or leave out the scorer's variant" in done.stderr


def test_chunkkv_takes_its_share_of_the_chunks_before_the_budget_is_rounded(trace, tmp_path):
    share, chunks = 0.0655, -(-P // 7)
    assert int(share * chunks) == 3 and int(share * P) * chunks // P == 2
    method = {"name": "chunkkv", "chunk": 7}
    for row in run(trace, tmp_path / "out", [method], "-s", f"budget={{fraction_kept: [{share}]}}"):
        kept = prompt_tokens(tmp_path / "out", row)
        assert len(set(kept // 7)) == 3
        assert json.loads(row["extras"])["realised_tokens"] == len(kept) == 3 * 7


@pytest.mark.parametrize("name", ["knorm", "keydiff", "curdkv", "lagkv", "window"])
def test_methods_without_queries_are_charged_per_query_head_too(trace, tmp_path, name):
    methods = [{"name": name, "gqa": {"level": level}} for level in ("kv", "query")]
    rows = run(trace, tmp_path / "out", methods)
    for plain, split in zip(rows_at(rows, "kv"), rows_at(rows, "query"), strict=True):
        with h5py.File(tmp_path / "out/kept.h5") as f:
            one, each = (f[row["key"]]["kept_flat"][:] for row in (plain, split))
        assert np.array_equal(each, np.tile(one, 2)), "two query heads of a kv head hold equal tokens"
        for column in ("peak_bytes", "final_bytes", "aux_bytes", "total_bytes"):
            assert int(split[column]) == 2 * int(plain[column]), column
        assert float(split["rel_err_out_mean"]) == pytest.approx(float(plain["rel_err_out_mean"]), rel=1e-6)
        assert plain["peak_kept_tokens"] == split["peak_kept_tokens"]


def rows_at(rows, level):
    found = [row for row in rows if json.loads(row["params"])["gqa.level"] == level]
    return sorted(found, key=lambda row: (int(row["layer"]), int(row["kv_head"])))
