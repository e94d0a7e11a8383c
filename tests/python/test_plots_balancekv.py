"""Figures of BalanceKV: halvings with paired samples, the merge tree, the walk's discrepancy."""

import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from fake_figure import config_context, sketch
from kvanalysis.data.load import load
from kvanalysis.errors import FigureError
from kvanalysis.figures.config import Step
from kvanalysis.figures.steps import _completed
from kvanalysis.plots.balancekv import halving_error, walk_theorems
from kvanalysis.plots.balancekv.discrepancy import COIN, LITERAL, discrepancy, walk_of
from kvanalysis.plots.balancekv.memory_powers import memory_verdicts
from kvanalysis.stats.fits import Slope, slope
from kvanalysis.stats.paired import lower_everywhere
from test_kvanalysis_fake import fake_row, write_results

CONFIGS = Path(__file__).parents[2] / "configs/figures"


def write_extras(folder, rows):
    """Writes results with the column `extras` taken from each row."""
    rows = [row | {"extras": json.dumps(row["extras"])} for row in rows]
    return write_results(folder, rows, columns=list(rows[0]))


def halved(gamma, tail, rel_err, budget=416, **place):
    params = {"gamma": gamma, "den": "code"}
    rounds = {416: 1, 240: 2}[budget]
    return fake_row(
        "balancekv", params, budget, rel_err=rel_err, extras={"tail": tail, "rounds": rounds}, **place
    )


def halving_runs(out):
    """Five layers, one seed, two sizes: walks with tails 4 to 6, coins with 20, and their samples."""
    rows, samples = [], []
    for layer, tail in enumerate((4, 6, 5, 4, 6)):
        more = 0.01 * (tail - 4)
        for budget in (416, 240):
            at = {"layer": layer, "budget": budget}
            rows += [halved(4, tail, 0.1 + more, **at), halved(0, 20, 0.2 + more, **at)]
            rows.append(fake_row("uniform", rel_err=0.3 + more, extras={}, **at))
        for rounds in (1, 2):
            for kept in (5, 20):
                params = {"rounds": rounds, "tail": kept}
                samples.append(fake_row("uniform", params, 240, rel_err=kept / 100, layer=layer, extras={}))
    write_extras(out / "run", rows)
    write_extras(out / "tail", samples)


def test_the_tail_of_the_paired_samples_is_the_mean_over_heads(tmp_path):
    halving_runs(tmp_path)
    tails = halving_error.tails_of(load(tmp_path / "run"))
    assert tails[halving_error.WALK, 1] == (1, 5)
    assert tails[halving_error.COIN, 2] == (2, 20)


def test_the_sweep_is_completed_from_the_trace_and_from_the_run_before(tmp_path):
    halving_runs(tmp_path)
    at = config_context("balancekv_fig2", tmp_path)
    run = halving_error.derived_overrides(at, Step("run", "run", {}))
    assert (run["replay.prefill"], run["budget.tokens"]) == (448, [246, 145, 94, 69])
    assert run["methods.0.sinks"] == 44
    assert "methods.0.recent" not in run, "no recent tokens: the decode tokens are the recent ones"
    tail = halving_error.derived_overrides(at, Step("run", "tail", {}))
    assert {"name": "uniform", "sinks": 44, "recent": 0, "rounds": 2, "tail": 20} in tail["methods"]
    assert len(tail["methods"]) == 4


def test_a_sample_is_named_after_the_walk_with_its_tail(tmp_path):
    halving_runs(tmp_path)
    plot = sketch(config_context("balancekv_fig2", tmp_path))
    table = plot.table().groupby(["name", "rounds"])["mean"].mean()
    assert table["uniform, tail of balancekv", 1] == pytest.approx(0.05)
    assert table["uniform, tail of the coin", 2] == pytest.approx(0.20)
    assert table["balancekv", 1] == pytest.approx(0.11)
    outcomes = {v.claim: v.outcome for v in plot.verdicts}
    assert outcomes["BalanceKV has a lower error than uniform sampling of as many tokens"] == "holds"
    assert (
        outcomes["BalanceKV has a lower error than a uniform sample with its exact tail"] == "does not hold"
    )
    assert "for T = 1 2): balancekv 5 5; coin (gamma 0) 20 20" in plot.figures[0].caption


def test_the_clamped_metric_gets_a_separate_figure_if_measured(tmp_path):
    halving_runs(tmp_path)
    for step in ("run", "tail"):
        table = pd.read_csv(tmp_path / step / "results.csv", dtype=str, keep_default_na=False)
        table.assign(rel_err_clamped="0.7").to_csv(tmp_path / step / "results.csv", index=False)
    plot = sketch(config_context("balancekv_fig2", tmp_path))
    assert [figure.title.split(" by")[0] for figure in plot.figures] == [
        "Relative error",
        "Relative error, clamped metric",
    ]
    assert set(plot.table(1)["mean"]) == {0.7}


def test_a_kind_completes_run_and_cluster_steps_but_the_step_itself_has_priority():
    def derived(_step):
        return {"replay.tokens": 9, "select.layers": [1]}

    run = _completed(Step("run", "run", {"replay.tokens": 5}), derived)
    assert run.argument == {"replay.tokens": 5, "select.layers": [1]}
    assert _completed(Step("cluster", "c", ""), derived).argument.split() == [
        "-s", "replay.tokens=9", "-s", "'select.layers=[1]'",
    ]  # fmt: skip
    assert _completed(Step("bounds", "b", "buzz"), derived).argument == "buzz"


def kept_of(weights_by_step):
    """Datasets of kept.h5 from a series of lists of denominator weights."""
    off = np.cumsum([0, *map(len, weights_by_step)])
    return {"kept_off": off, "den": np.concatenate(weights_by_step), "kept_flat": np.arange(off[-1])}


def tree_run(out, weights_by_step):
    """One balancekv_stream cell, t = 2, T = 2."""
    row = fake_row("balancekv_stream", {"batch": 2, "levels": 2}, "", n_prefill=1)
    write_results(out / "run", [row])
    with h5py.File(out / "run/kept.h5", "w") as file:
        for name, data in kept_of(weights_by_step).items():
            file[f"{row['key']}/{name}"] = data


# t = 2, T = 2: after 2 tokens one is on level 1; after 4 both levels below the top are empty.
TREE = [[1.0], [2.0, 0.0], [2.0, 1.0], [4.0]]


def test_the_merge_tree_is_held_against_the_bits_at_every_step(tmp_path):
    tree_run(tmp_path, TREE)
    plot = sketch(config_context("balancekv_fig1", tmp_path))
    table = plot.table()
    entries = table.pivot(index="tokens", columns="level", values="entries").to_numpy()
    assert entries.tolist() == [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert table[table["level"] == 1]["predicted"].tolist() == [0, 1, 1, 0]
    assert plot.verdicts[0].outcome == "holds"


def test_a_level_that_should_be_empty_makes_the_verdict_fail(tmp_path):
    tree_run(tmp_path, [*TREE[:3], [2.0]])
    [verdict] = sketch(config_context("balancekv_fig1", tmp_path)).verdicts
    assert verdict.outcome == "does not hold"
    assert "1 are 0 where the level is occupied" in verdict.numbers


def test_a_tree_that_did_not_start_at_token_0_is_refused(tmp_path):
    row = fake_row("balancekv_stream", {"batch": 2, "levels": 2}, "", n_prefill=768)
    write_results(tmp_path / "run", [row])
    with pytest.raises(FigureError, match=r"replay\.prefill must be 1"):
        sketch(config_context("balancekv_fig1", tmp_path))


def test_a_missing_tree_is_reported(tmp_path):
    write_results(tmp_path / "run", [fake_row()])
    assert sketch(config_context("balancekv_fig1", tmp_path)).verdicts[0].outcome == "not decided"


def test_the_discrepancy_of_two_equal_tokens_is_zero_if_one_is_kept():
    keys, values = np.ones((2, 3)), np.ones((2, 2))
    assert discrepancy(keys, values, [0], 0.5) == pytest.approx(0)
    # Both kept: 2 exp(scale (<k, q> - r^2)) |v|/|v|, which is at most 2, for the q nearest to k.
    assert 0 < discrepancy(keys, values, [0, 1], 0.5) <= 2


def test_signs_may_be_swapped_and_values_scaled():
    random = np.random.default_rng(1)
    keys, values = random.normal(size=(20, 3)), random.normal(size=(20, 2))
    kept = np.arange(8)
    others = np.arange(8, 20)
    found = discrepancy(keys, values, kept, 0.5)
    assert discrepancy(keys, 3 * values, others, 0.5) == pytest.approx(found)


@pytest.mark.parametrize(("c", "name"), [(90 * np.log(1000), LITERAL), (8, "c = 8"), (1e30, COIN)])
def test_a_walk_is_named_by_what_its_bound_means(c, name):
    assert walk_of({"params": {"c": c, "delta": None}, "n_tokens": 1000}) == name


def test_the_interval_of_an_exponent_is_over_layers():
    place = {"trace_id": "t", "prompt": "0", "kv_head": 0}
    rows = pd.DataFrame([
        place | {"layer": layer, "x": x, "y": x**power}
        for layer, power in enumerate((-1, -1.5, -2, -2.5, -3)) for x in (1.0, 2.0, 4.0)
    ])  # fmt: skip
    found = slope(rows, "x", "y")
    reach = 2.776445 * np.sqrt(0.625 / 5)
    assert (found.value, found.n_units) == (pytest.approx(-2), 5)
    assert (found.low, found.high) == (pytest.approx(-2 - reach), pytest.approx(-2 + reach))


def test_an_interval_that_contains_the_exponent_and_much_else_does_not_confirm_it():
    wide, narrow = Slope(-2.0, -4.0, 0.0, 5), Slope(-2.0, -2.2, -1.9, 5)
    [verdict] = memory_verdicts({("a trace", "subgen_stream"): wide})
    assert (verdict.outcome, verdict.numbers) == ("not decided", "-2.00 [-4.00, 0.00] over 5 heads")
    assert memory_verdicts({("a trace", "subgen_stream"): narrow})[0].outcome == "holds"


def test_a_discrepancy_that_grows_as_a_root_is_no_logarithm():
    n = np.array([256, 1024, 4096])
    walks = pd.DataFrame({"tokens": n})
    for power, outcome in ((0.5, "does not hold"), (0.1, "holds")):
        found, coin = (Slope(mean, low, high, 2) for mean, low, high in (
            (power, power, power + 0.01), (0.5, 0.5, 0.5)))  # fmt: skip
        slopes = {LITERAL: found, COIN: coin}
        assert [v.outcome for v in walk_theorems.walk_verdicts(walks, slopes)] == [outcome]


def test_a_claim_without_a_common_head_or_with_a_single_one_does_not_decide(tmp_path):
    frame = load(write_results(tmp_path, [fake_row("h2o"), fake_row("tova", kv_head=1), fake_row("window")]))
    h2o, tova, window = (frame[frame["method"] == m] for m in ("h2o", "tova", "window"))
    for other in (tova, window):
        assert lower_everywhere("a", "b", [("64", h2o, other)]).outcome == "not decided"
