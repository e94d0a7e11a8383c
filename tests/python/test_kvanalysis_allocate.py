"""Budgets that minimise the predicted loss: optima worked out by hand, refusals, and the files."""

import itertools
import json

import h5py
import numpy as np
import pytest
from front_door import command as cli
from kvanalysis import load
from kvanalysis.errors import ConfigError, ResultsError
from kvanalysis.loss.budget_curves import method_curves
from kvanalysis.loss.budget_files import csv_text, json_text
from kvanalysis.loss.budgets import Budget, allocate
from kvanalysis.loss.marginals import Curves, convex, falling, spend
from kvbase.errors import KvreplayError
from kvreplay_cli import kvreplay, synth, table
from test_kvanalysis_fake import COLUMNS, PREFILL, ROW_BYTES, TOKENS, fake_row, write_results

WITH_LOSS = (*COLUMNS, "given", "kl_head_mean", "extras")
ONESHOT = {"phase": "oneshot", "row_format": "source"}
INT8 = ONESHOT | {"row_format": "int8"}


def rows_of(curves, method="snapkv", params=ONESHOT, given=None, prompt="p0", row_bytes=ROW_BYTES, **changes):
    """Cells from {(layer, kv head): {budget: loss}}; a one-shot method holds the decode tokens, too."""
    return [
        fake_row(
            method, params, budget, layer=layer, kv_head=head, given=given or {}, prompt=prompt,
            kl_head_mean=loss, total_bytes=((budget or PREFILL) + TOKENS - PREFILL) * row_bytes, **changes,
        )
        for (layer, head), losses in curves.items() for budget, loss in losses.items()
    ]  # fmt: skip


def loaded(folder, rows, columns=WITH_LOSS):
    return load(write_results(folder, rows, columns=columns))


def halving(first):
    """Losses that fall by an equal amount per doubling of the tokens."""
    return {
        64: first,
        128: 0.8 * first,
        256: 0.6 * first,
        512: 0.4 * first,
        768: (0.4 - 0.2 * np.log2(1.5)) * first,
    }


def curves_of(tokens, *kl):
    return Curves(np.tile(tokens, (len(kl), 1)), np.array(kl, dtype=float))


# Optima


def test_heads_on_one_kind_of_curve_share_tokens_as_their_losses_fall():
    """With loss -a log b a token gains a / b, so tokens are proportional to a: here 3 to 1."""
    tokens = np.array([10, 10_000])
    curves = curves_of(tokens, -3 * np.log(tokens), -np.log(tokens))
    assert list(spend(curves, np.ones(2), 4000)) == [3000, 1000]


def test_a_token_that_takes_twice_the_bytes_must_save_twice_as_much():
    tokens = np.array([10, 10_000])
    curves = curves_of(tokens, -np.log(tokens), -np.log(tokens))
    assert list(spend(curves, np.array([2.0, 1.0]), 4000)) == [1000, 2000]


@pytest.mark.parametrize("seed", range(6))
def test_no_other_division_of_few_tokens_loses_less(seed):
    random = np.random.default_rng(seed)
    tokens = np.array([2, 4, 7, 9])
    curves = curves_of(tokens, *(convex(tokens, falling(random.random(4))) for _ in range(3)))
    for total in range(6, 28):
        found = spend(curves, np.ones(3), total)
        assert found.sum() == total
        every = (b for b in itertools.product(range(2, 10), repeat=3) if sum(b) == total)
        least = min(curves.at(np.array(b)).sum() for b in every)
        assert curves.at(found).sum() == pytest.approx(least, abs=1e-12)


def test_two_heads_get_the_optimum_that_their_curves_have(tmp_path):
    """Losses fall by 0.2 and 0.1 per doubling: the gains a / b are equal at twice the tokens."""
    rows = rows_of({(0, 0): halving(1.0), (0, 1): halving(0.5)})
    found = allocate(loaded(tmp_path, rows), "snapkv", Budget(tokens=150))
    assert list(found.table["tokens"]) == [200, 100]
    expected = [1 - 0.2 * np.log2(200 / 64), 0.5 * (1 - 0.2 * np.log2(100 / 64))]
    assert list(found.table["predicted_kl"]) == pytest.approx(expected)
    assert found.uniform_kl == pytest.approx(1.5 * (1 - 0.2 * np.log2(150 / 64)))


def test_a_head_that_the_model_ignores_gets_the_smallest_replayed_budget(tmp_path):
    rows = rows_of({(0, 0): halving(0), (1, 0): halving(1)})
    found = allocate(loaded(tmp_path, rows), "snapkv", Budget(tokens=128))
    assert list(found.table["tokens"]) == [64, 192]


def test_equal_heads_get_equal_tokens_and_the_odd_ones_go_to_the_first(tmp_path):
    rows = rows_of({(layer, 0): halving(1) for layer in range(3)})
    frame = loaded(tmp_path, rows)
    assert list(allocate(frame, "snapkv", Budget(tokens=100)).table["tokens"]) == [100, 100, 100]
    assert list(allocate(frame, "snapkv", Budget(tokens=302 / 3)).table["tokens"]) == [101, 101, 100]


@pytest.mark.parametrize("mean", [64, 65, 100, 333, 700, PREFILL])
def test_every_token_of_the_budget_is_spent_within_floor_and_prompt(tmp_path, mean):
    random = np.random.default_rng(1)
    rows = rows_of({(i, j): halving(random.random() ** 4) for i in range(4) for j in range(2)})
    tokens = allocate(loaded(tmp_path, rows), "snapkv", Budget(tokens=mean)).table["tokens"]
    assert tokens.sum() == 8 * mean
    assert tokens.min() >= 64
    assert tokens.max() <= PREFILL


def test_heads_without_loss_share_the_remaining_tokens(tmp_path):
    rows = rows_of({(0, head): halving(0) for head in range(3)})
    assert list(allocate(loaded(tmp_path, rows), "snapkv", Budget(tokens=70)).table["tokens"]) == [70, 70, 70]


def test_a_share_of_the_bytes_is_spent_except_for_less_than_a_token(tmp_path):
    rows = rows_of({(0, 0): halving(1), (0, 1): halving(0.5)})
    found = allocate(loaded(tmp_path, rows), "snapkv", Budget(share=0.4))
    left = 0.4 * 2 * TOKENS * ROW_BYTES - found.table["bytes"].sum()
    assert 0 <= left < ROW_BYTES
    assert list(found.table["bytes"]) == list((found.table["tokens"] + TOKENS - PREFILL) * ROW_BYTES)


def test_tokens_that_take_no_bytes_are_not_spared(tmp_path):
    """A layer with a window shorter than the budgets takes equal bytes at every budget."""
    rows = rows_of({(0, 0): halving(1)}) + [
        row | {"total_bytes": 100 * ROW_BYTES} for row in rows_of({(1, 0): halving(1)})
    ]
    found = allocate(loaded(tmp_path, rows), "snapkv", Budget(share=0.3))
    assert found.table["tokens"].iloc[1] == PREFILL
    assert 0 <= 0.3 * 2 * TOKENS * ROW_BYTES - found.table["bytes"].sum() < ROW_BYTES


# Curves


def test_neighbours_that_rise_share_their_mean():
    assert list(falling(np.array([5.0, 2, 4, 1]))) == [5, 3, 3, 1]
    assert list(falling(np.array([1.0, 2, 3]))) == [2, 2, 2]
    assert list(falling(np.array([3.0, 1, 2, 3]))) == [3, 2, 2, 2]


def test_a_bump_is_replaced_by_the_line_below_it():
    tokens = np.array([1, 2, 4, 8])
    assert list(convex(tokens, np.array([3.0, 2.9, 1.0, 0.0]))) == pytest.approx([3, 2, 1, 0])
    assert list(convex(tokens, np.array([9.0, 4.0, 1.0, 0.0]))) == [9, 4, 1, 0]


def test_a_curve_that_falls_late_is_not_starved_of_its_first_tokens(tmp_path):
    """All of the gain is between 512 and 768 tokens: an allocator that only looks one step ahead stays at
    64."""
    late = {64: 1, 128: 1, 256: 1, 512: 1, 768: 0}
    rows = rows_of({(0, 0): late, (0, 1): halving(0.01)})
    tokens = allocate(loaded(tmp_path, rows), "snapkv", Budget(tokens=416)).table["tokens"]
    assert list(tokens) == [768, 64]


def test_losses_that_rise_with_the_budget_count_by_their_mean(tmp_path):
    """2 and 4 become 3 and 3. The envelope from 3 to 0 at the whole prompt is below the second."""
    curve = method_curves(loaded(tmp_path, rows_of({(0, 0): {64: 2, 128: 4}})), "snapkv", None).curves
    second = 3 * np.log(PREFILL / 128) / np.log(PREFILL / 64)
    assert curve.kl.tolist() == [pytest.approx([3, second, 0])]


def test_a_method_that_selects_once_loses_nothing_with_the_whole_prompt(tmp_path):
    rows = rows_of({(0, 0): {64: 2, 128: 1}})
    curve = method_curves(loaded(tmp_path, rows), "snapkv", None)
    assert curve.curves.tokens.tolist() == [[64, 128, PREFILL]]
    assert curve.measured.tolist() == [[2, 1, 0]]


def test_a_method_that_streams_loses_nothing_with_all_tokens(tmp_path):
    rows = rows_of({(0, 0): {64: 2, 128: 1}}, params={"phase": "stream", "row_format": "source"})
    assert method_curves(loaded(tmp_path, rows), "snapkv", None).curves.tokens.tolist() == [[64, 128, TOKENS]]


def test_a_coded_cache_of_the_whole_prompt_costs_the_loss_of_its_format(tmp_path):
    int4 = {"name": "int4", "group": 64}
    params = {"phase": "oneshot", "row_format": int4}
    rows = rows_of({(0, 0): {64: 2, 128: 1}}, params=params, given={"row_format": int4})
    alone = method_curves(loaded(tmp_path / "a", rows), "snapkv", None)
    assert alone.curves.tokens.tolist() == [[64, 128]]
    rows += rows_of({(0, 0): {"": 0.25}}, "exact", {"row_format": int4}, {"row_format": int4})
    beside = method_curves(loaded(tmp_path / "b", rows), "snapkv", None)
    assert beside.measured.tolist() == [[2, 1, 0.25]]


def test_losses_are_means_over_the_prompts_that_count(tmp_path):
    rows = rows_of({(0, 0): {64: 2, 128: 1}}) + rows_of({(0, 0): {64: 4, 128: 3}}, prompt="p1")
    frame = loaded(tmp_path, rows)
    assert method_curves(frame, "snapkv", ["p1"]).measured.tolist() == [[4, 3, 0]]
    assert method_curves(frame, "snapkv", ["p0", "p1"]).measured.tolist() == [[3, 2, 0]]


# Row formats


def two_formats(quantised_loss):
    """int4 rows cost layer 0 the losses passed in, layer 1 hardly anything; they take a quarter of the
    bytes."""
    int4 = {"row_format": {"name": "int4", "group": 64}}
    plain = rows_of({(layer, 0): halving(1) for layer in (0, 1)})
    coded = {
        (layer, 0): {b: loss + extra for b, loss in halving(1).items()}
        for layer, extra in ((0, quantised_loss), (1, 0.001))
    }
    return plain + rows_of(coded, params=ONESHOT | int4, given=int4, row_bytes=ROW_BYTES / 4)


def test_a_layer_gets_the_row_format_with_the_lowest_loss_at_its_bytes(tmp_path):
    harmless_method = rows_of({(layer, 0): dict.fromkeys((64, 128), 0) for layer in (0, 1)}, "tova")
    frame = loaded(tmp_path, two_formats(quantised_loss=3.0) + harmless_method)
    found = allocate(frame, "snapkv", Budget(tokens=128), formats=True)
    assert list(found.table["label"]) == ["snapkv", "snapkv int4"]
    assert found.table["bytes"].sum() <= 2 * (128 + TOKENS - PREFILL) * ROW_BYTES
    assert found.predicted_kl < found.uniform_kl
    harmless = allocate(loaded(tmp_path / "h", two_formats(0.001)), "snapkv", Budget(tokens=64), formats=True)
    assert set(harmless.table["label"]) == {"snapkv int4"}


def test_layers_with_the_highest_loss_per_byte_stay_unquantised_if_bytes_are_left(tmp_path):
    int4 = {"row_format": {"name": "int4", "group": 64}}
    losses = {(0, 0): {"": 0.1}, (1, 0): {"": 0.5}, (2, 0): {"": 0.2}}
    rows = rows_of(losses, "exact", int4, int4, row_bytes=ROW_BYTES / 4)
    for share, skipped in ((0.25, []), (0.5, [1]), (0.75, [1, 2]), (1, [0, 1, 2])):
        found = allocate(loaded(tmp_path, rows), "exact int4", Budget(share=share), formats=True)
        said = json.loads(json_text(found))
        assert said["skip_layers"] == skipped
        assert said["skip_layers"] == [each["layer"] for each in said["layers"] if each["full"]]
    said = json.loads(
        json_text(allocate(loaded(tmp_path, rows), "exact int4", Budget(share=0.3), formats=True))
    )
    assert said["skip_order"] == [1, 2, 0]


# Files


def test_the_files_hold_the_allocation(tmp_path):
    rows = rows_of({(0, 0): halving(1), (0, 1): halving(0.5), (3, 0): halving(0), (3, 1): halving(0)})
    found = allocate(loaded(tmp_path, rows), "snapkv", Budget(tokens=107))
    assert csv_text(found) == "layer,kv_head,tokens\n0,0,200\n0,1,100\n3,0,64\n3,1,64\n"
    said = json.loads(json_text(found))
    assert said["budget"] == {"tokens": 107}
    assert [(each["layer"], each["tokens"]) for each in said["layers"]] == [(0, [200, 100]), (3, [64, 64])]
    assert said["predicted_kl"] == pytest.approx(
        sum(sum(each["predicted_kl"]) for each in said["layers"]), rel=1e-5
    )
    lost = found.table["predicted_kl"].sum()
    saved = 2 * (PREFILL - 150) * ROW_BYTES
    assert said["layers"][0]["kl_per_mib_if_full"] == pytest.approx(lost / saved * 2**20, rel=1e-5)
    assert (said["skip_layers"], said["skip_order"]) == ([], [0, 3])


def test_the_command_writes_both_files_and_prints_their_paths(tmp_path, capsys):
    write_results(tmp_path, rows_of({(0, 0): halving(1), (0, 1): halving(0.5)}), columns=WITH_LOSS)
    words = ["allocate", str(tmp_path), "--method", "snapkv", "--budget", "150"]
    assert cli.main([*words, "-o", str(tmp_path / "b.csv"), "--json", str(tmp_path / "b.json")]) == 0
    told = capsys.readouterr()
    assert told.out.split() == [str(tmp_path / "b.csv"), str(tmp_path / "b.json")]
    assert "the predicted loss of the heads is" in told.err
    assert cli.main(words) == 0
    assert capsys.readouterr().out == (tmp_path / "b.csv").read_text()


@pytest.fixture(scope="module")
def gradient_trace(tmp_path_factory):
    """A synthetic trace of two layers with invented gradients, small in the second layer."""
    path = synth(tmp_path_factory.mktemp("trace") / "t.h5", "--tokens", 160, "--prompt", 128, "--layers", 2,
                 "--q-heads", 4, "--kv-heads", 2, "--head-dim", 16, "--v-head-dim", 16)  # fmt: skip
    random = np.random.default_rng(3)
    with h5py.File(path, "r+") as file:
        file.attrs["g_samples"] = np.int64(2)
        for layer, size in (("000", 0.1), ("001", 0.001)):
            group = file["prompts"][next(iter(file["prompts"]))]["layers"][layer]
            group["g"] = (size * random.standard_normal((2, 4, 31, 16))).astype("f4")
            group["g_rows"] = np.arange(128, 159, dtype="i4")
    return path


def test_the_engine_gives_each_head_the_files_budget(gradient_trace, tmp_path):
    done = kvreplay(
        "run", gradient_trace, "--method", "snapkv", "--budget", "40,64,96", "-o", tmp_path / "curves"
    )
    assert done.returncode == 0, done.stderr
    found = allocate(load(tmp_path / "curves"), "snapkv", Budget(tokens=64))
    assert found.table["tokens"].nunique() > 1
    (tmp_path / "b.csv").write_text(csv_text(found))
    entry = f"methods=[{{name: snapkv, allocator: 'file:{tmp_path / 'b.csv'}'}}]"
    done = kvreplay("run", gradient_trace, "--budget", "64", "-o", tmp_path / "out", "-s", entry)
    assert done.returncode == 0, done.stderr
    given = {(int(row["layer"]), int(row["kv_head"])): row for row in table(tmp_path / "out")}
    for head in found.table.itertuples():
        row = given[head.layer, head.kv_head]
        assert json.loads(row["extras"])["allocated_tokens"] == head.tokens
        assert int(row["total_bytes"]) == head.bytes
    assert found.predicted_kl < found.uniform_kl


def test_the_engine_gives_each_layer_the_tokens_and_the_format_of_both_files(gradient_trace, tmp_path):
    """A budget near the largest: the layer that the model hardly uses pays with its format."""
    entry = "methods=[{name: snapkv, row_format: [source, int4]}, {name: exact, row_format: int4}]"
    done = kvreplay("run", gradient_trace, "--budget", "40,64,96", "-o", tmp_path / "curves", "-s", entry)
    assert done.returncode == 0, done.stderr
    words = ["allocate", str(tmp_path / "curves"), "--method", "snapkv", "--budget", "55%", "--formats"]
    assert cli.main([*words, "-o", str(tmp_path / "b.csv"), "--json", str(tmp_path / "b.json")]) == 0
    both = f"allocator: 'file:{tmp_path / 'b.csv'}', row_format: 'file:{tmp_path / 'formats.csv'}'"
    entry = f"methods=[{{name: snapkv, {both}}}]"
    done = kvreplay("run", gradient_trace, "--budget", "64", "-o", tmp_path / "out", "-s", entry)
    assert done.returncode == 0, done.stderr
    layers = json.loads((tmp_path / "b.json").read_text())["layers"]
    assert len({str(each["row_format"]) for each in layers}) == 2
    given = {(int(row["layer"]), int(row["kv_head"])): row for row in table(tmp_path / "out")}
    for each in layers:
        for head, tokens in enumerate(each["tokens"]):
            row = given[each["layer"], head]
            assert json.loads(row["extras"])["allocated_tokens"] == tokens
            assert row["row_format"] == (
                each["row_format"] if isinstance(each["row_format"], str) else
                json.dumps(each["row_format"], sort_keys=True, separators=(",", ":")))  # fmt: skip
        assert sum(int(given[each["layer"], head]["total_bytes"]) for head in range(2)) == each["bytes"]


# Refusals


def refusal(folder, rows, label="snapkv", budget=None, columns=WITH_LOSS, **options):
    with pytest.raises(KvreplayError) as raised:
        allocate(loaded(folder, rows, columns), label, budget or Budget(tokens=100), **options)
    return str(raised.value)


def test_an_allocation_without_a_gradient_is_refused_with_the_recording_command(tmp_path):
    rows = rows_of({(0, 0): halving(1)})
    without = tuple(name for name in WITH_LOSS if name != "kl_head_mean")
    assert "record the trace with `kvreplay record --with-gradient 8`" in refusal(
        tmp_path / "a", rows, columns=without
    )
    empty = [row | {"kl_head_mean": ""} for row in rows]
    assert "record the trace with `kvreplay record --with-gradient 8`" in refusal(tmp_path / "b", empty)
    with pytest.raises(ResultsError):
        allocate(load(tmp_path / "b"), "snapkv", Budget(tokens=100))


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        (rows_of({(0, 0): {64: 1}}), {}, "a curve needs at least two budgets"),
        (rows_of({(0, 0): {64: 1, 128: 1}, (0, 1): {64: 1, 256: 1}}), {}, "the run has 1"),
        (rows_of({(0, 0): halving(1)}), {"label": "tova"}, "--method tova: the run has only snapkv"),
        (
            rows_of({(0, 0): halving(1)}) + rows_of({(0, 0): halving(1)}, prompt="p1"),
            {},
            "choose with --prompt one or more of p0, p1",
        ),
        (rows_of({(0, 0): halving(1)}), {"prompts": ["p7"]}, "--prompt p7: the run has only p0"),
        (rows_of({(0, 0): halving(1)}), {"budget": Budget(tokens=63)}, "replay smaller ones"),
        (rows_of({(0, 0): halving(1)}), {"budget": Budget(tokens=PREFILL + 1)}, "lower it"),
        (rows_of({(0, 0): halving(1)}), {"budget": Budget(share=0.1)}, "replay smaller ones"),
        (
            rows_of({(0, 0): halving(1)}),
            {"budget": Budget(share=0.1), "formats": True},
            "smallest budgets and row formats take",
        ),
        (rows_of({(0, 0): {"": 1}}, "exact", {}), {"label": "exact"}, "takes no budget; with --formats"),
        (rows_of({(0, 0): {"": 1}}, "exact", {}), {"label": "exact", "formats": True}, "needs a share"),
        (
            rows_of({(0, 0): halving(1), (1, 0): halving(1)})
            + rows_of({(0, 0): halving(1)}, params=INT8, given={"row_format": "int8"}),
            {"formats": True},
            "snapkv int8 lacks layers",
        ),
        (
            rows_of({(0, 0): halving(1)}, extras='{"allocated_tokens":70}'),
            {},
            "shares its budget over heads",
        ),
        (
            rows_of({(0, 0): halving(1)}, "pyramidkv", extras='{"layer_budget":70}'),
            {"label": "pyramidkv"},
            "shares its budget over heads or layers",
        ),
        (rows_of({(0, 0): halving(1)}, params={"gqa.level": "layer"}), {}, "gqa.level layer"),
        (
            rows_of({(0, 0): halving(1)}) + rows_of({(0, 0): halving(1)}, prompt="p1", n_prefill=99),
            {"prompts": ["p0", "p1"]},
            "prompts of 99, 768 tokens",
        ),
    ],
)  # fmt: skip
def test_an_impossible_allocation_is_refused_with_the_reason(tmp_path, rows, options, says):
    assert says in refusal(tmp_path, rows, **options)


@pytest.mark.parametrize("budget", ["0", "-3", "120%", "many", "nan", "inf"])
def test_an_invalid_budget_is_refused(tmp_path, budget, capsys):
    write_results(tmp_path, rows_of({(0, 0): halving(1)}), columns=WITH_LOSS)
    assert cli.main(["allocate", str(tmp_path), "--method", "snapkv", f"--budget={budget}"]) == 2
    assert f"--budget {budget}: write tokens" in capsys.readouterr().err


def test_tokens_of_mixed_formats_without_the_formats_are_refused(tmp_path, capsys):
    words = ["allocate", str(tmp_path), "--method", "snapkv", "--budget", "64", "--formats", "-o", "b.csv"]
    assert cli.main(words) == 2
    assert "holds tokens alone; add --json FILE" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--budget", "64"], ["--method", "snapkv"], []])
def test_a_call_without_a_method_or_a_budget_says_what_to_give(tmp_path, words, capsys):
    assert cli.main(["allocate", str(tmp_path), *words]) == 2
    assert "give --method and --budget, or --formats" in capsys.readouterr().err


def test_a_budget_is_tokens_or_a_share_and_not_both():
    for wrong in ({}, {"tokens": 64, "share": 0.5}):
        with pytest.raises(ConfigError, match="either tokens or a share"):
            Budget(**wrong)


def test_no_head_gets_more_than_the_full_cache(tmp_path):
    curves = {
        (0, 0): {64: 1.0, 256: 0.5, PREFILL: 0.0, 2 * PREFILL: 0.0},
        (0, 1): {64: 0.1, 256: 0.05, PREFILL: 0.0, 2 * PREFILL: 0.0},
    }
    rows = rows_of(curves)
    for row in rows:
        row["total_bytes"] = (min(row["budget_tokens"], PREFILL) + TOKENS - PREFILL) * ROW_BYTES
    found = allocate(loaded(tmp_path, rows), "snapkv", Budget(tokens=PREFILL))
    assert list(found.table["tokens"]) == [PREFILL, PREFILL]
    assert list(found.table["bytes"]) == [TOKENS * ROW_BYTES] * 2
