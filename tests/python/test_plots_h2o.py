"""Figures of H2O from numbers that can be checked by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from fake_figure import draw, scores, write_cluster, write_lists
from kvanalysis.data.arrays import Recorded
from kvanalysis.data.toy_trace import write_toy_trace
from kvanalysis.errors import ResultsError
from kvanalysis.figures.config import read_figure_config
from kvanalysis.figures.make import make_figure
from kvanalysis.figures.steps import RunOptions
from kvanalysis.plots.h2o.accumulated_tail import null_scores, top_share
from kvanalysis.plots.h2o.global_statistics import chance, jaccard
from kvanalysis.stats.verdict import FAILS, HOLDS, MIXED, UNDECIDED, UNTESTABLE
from kvreplay_cli import BINARY, ROOT
from test_kvanalysis_fake import fake_row


def test_uniform_causal_attention_gives_the_top_fifth_half_of_it():
    assert null_scores(3).tolist() == pytest.approx([1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3])
    assert null_scores(4096).sum() == pytest.approx(4096)
    assert top_share(null_scores(4096), 0.2) == pytest.approx(0.52, abs=0.005)
    assert top_share(null_scores(4096), 0.05) == pytest.approx(0.2, abs=0.005)


def test_the_share_of_the_top_tokens_is_that_of_the_largest_scores():
    four = np.array([1.0, 5.0, 3.0, 1.0])
    for top, share in ((0.25, 0.5), (0.49, 0.5), (0.5, 0.8), (0.01, 0.5)):  # rounded down, at least one
        assert top_share(four, top) == share


def test_a_heavy_tail_is_more_than_the_null_over_the_layers(tmp_path):
    steep = np.geomspace(1, 1e-4, 100)
    # One steep layer of five: an excess of x, 0, 0, 0, 0 has an interval that includes zero.
    for folder, others, outcome in (("steep", steep, HOLDS), ("flat", null_scores(100), UNDECIDED)):
        (tmp_path / folder).mkdir()
        heads = [scores(layer, h, others if layer else steep) for layer in range(5) for h in range(2)]
        write_cluster(tmp_path / folder, [line for head in heads for line in head])
        plot = draw(tmp_path / folder, "accumulated_tail")
        assert plot.verdicts[0].outcome == outcome
        top = plot.table(1)
        together = top["label"] == "query heads of a kv head together"
        measured = top[(top["panel"] == "top 20 % of tokens") & together]
        assert measured["y"].tolist()[0] == pytest.approx(top_share(steep, 0.2))


def test_the_null_of_the_recorded_rows_is_preferred_to_that_of_all_rows(tmp_path):
    flat = [1 / 4] * 4
    lines = [line for layer in range(5) for line in scores(layer, 0, flat)]
    write_cluster(tmp_path, lines + [(layer, 0, "top_share_null", 0.2, "", 0.6) for layer in range(5)])
    plot = draw(tmp_path, "accumulated_tail")
    assert plot.outcomes()[0] == FAILS  # 1/4 is less than 0.6
    top = plot.table(1)
    null = top[top["label"] == "uniform causal attention"].set_index("panel")["y"]
    assert null["top 20 % of tokens"].tolist() == [0.6] * 5
    assert null["top 5 % of tokens"].tolist() == pytest.approx([top_share(null_scores(4), 0.05)] * 5)


def test_the_fits_of_the_tail_are_compared_where_the_program_gives_them(tmp_path):
    # Differences 0.4, 0.1, 0.4, 0.1, 0.25: mean 0.25, plus or minus 2.776 sqrt(0.0225 / 5) = 0.186.
    lines = [line for layer in range(5) for line in scores(layer, 0, [3, 2, 1])]
    fits = {
        "log_log_r2": (0.9, 0.8, 0.9, 0.8, 0.85),
        "exponential_r2": (0.5, 0.7, 0.5, 0.7, 0.6),
        "log_log_slope": (-1,) * 5,
    }
    lines += [(i, 0, name, "", "", value) for name, values in fits.items() for i, value in enumerate(values)]
    write_cluster(tmp_path, lines)
    verdict = draw(tmp_path, "accumulated_tail").verdicts[1]
    assert verdict.outcome == HOLDS
    assert "difference +0.25 [+0.06, +0.44]" in verdict.numbers


def sparsities(layers):
    return [
        (layer, 0, measure, head, "", value)
        for layer, value in layers.items()
        for measure in ("sparsity", "sparsity_no_sink", "sink_mass")
        for head in (0, 1)
    ]


@pytest.mark.parametrize(
    ("layers", "outcome"),
    [({0: 0.97, 3: 0.99}, HOLDS), ({0: 0.3, 3: 0.99}, MIXED), ({0: 0.3, 3: 0.9}, FAILS), ({2: 0.96}, HOLDS)],
)
def test_sparse_in_almost_all_layers_is_counted_over_layers(tmp_path, layers, outcome):
    write_cluster(tmp_path, sparsities(layers))
    plot = draw(tmp_path, "sparsity_by_layer")
    assert plot.outcomes() == [outcome, outcome]
    table = plot.table()
    means = table[(table["label"] == "all tokens") & ~table["dot"]]
    assert means["y"].tolist() == pytest.approx(list(layers.values()))
    assert table["dot"].sum() == 3 * 2 * len(layers)


def test_a_cluster_table_without_the_measure_is_reported(tmp_path):
    write_cluster(tmp_path, [(0, 0, "gini", "", "", 0.5)])
    with pytest.raises(ResultsError, match="no measure sparsity"):
        draw(tmp_path, "sparsity_by_layer")
    with pytest.raises(ResultsError, match="no accumulated scores"):
        draw(tmp_path, "accumulated_tail")


def test_the_dropped_share_counts_prompt_tokens(tmp_path):
    rows = [
        fake_row("drop_heavy", {"drop": drop, "sinks": 0}, budget, layer=i, rel_err=e, n_prefill=100)
        for drop, e in (("heavy", 0.8), ("random", 0.1))
        for budget in (99, 90)
        for i in range(5)
    ]
    claim = {"method": "drop_heavy", "sinks": 0}
    options = {
        "claims": [
            {
                "claim": "a",
                "lower": claim | {"drop": "random"},
                "higher": claim | {"drop": "heavy"},
                "times": 0.5,
            }
        ]
    }
    plot = draw(tmp_path, "dropped_tokens", rows, options)
    table = plot.table()
    assert sorted(set(table["x"])) == pytest.approx([1, 10])
    assert set(table["panel"]) == {"all tokens may be dropped"}
    assert "1 % dropped: heavy 0.8, random 0.1" in plot.figures[0].caption
    assert plot.verdicts[0].outcome == HOLDS


def test_overlap_is_jaccard_and_chance_is_that_of_random_sets():
    assert jaccard([1, 2, 3], [2, 3, 4]) == 0.5
    assert jaccard([], []) == 1
    assert chance(set(range(10)), set(range(10)), 100) == pytest.approx(1 / 19)
    random, found = np.random.default_rng(0), []
    for _ in range(400):
        found.append(jaccard(*(random.choice(100, 10, replace=False) for _ in range(2))))
    assert np.mean(found) == pytest.approx(1 / 19, abs=0.01)


def statistics_rows(kv_head):
    place = {"kv_head": kv_head, "budget": 4, "n_tokens": 10, "n_prefill": 8}
    sizes = {"heavy": 2, "recent": 2}
    local = {"variant": "real_drop", "score_rows": "full", **sizes}
    return [
        fake_row("h2o", local, given={}, rel_err=0.2, key=f"h{kv_head}", **place),
        fake_row(
            "h2o",
            local | {"variant": "oracle_global"},
            given={"variant": "oracle_global"},
            rel_err=0.19,
            key=f"g{kv_head}",
            **place,
        ),
        fake_row("local", {}, rel_err=0.9, key=f"l{kv_head}", **place),
    ]


def test_overlaps_compare_what_the_last_step_attends_to(tmp_path):
    rows = statistics_rows(0) + statistics_rows(1)
    for h in range(2):
        steps = {
            f"h{h}": [[0, 2, 6, 7], [0, 2, 7, 8], [0, 2, 8, 9]],
            f"l{h}": [[4, 5, 6, 7], [5, 6, 7, 8], [6, 7, 8, 9]],
        }
        write_lists(tmp_path / "run/kept.h5", steps)
        write_lists(tmp_path / "run/kept.h5", {f"g{h}": [[0, 1, 6, 7, 8], [0, 1, 7, 8, 9]]}, "attended")
    plot = draw(tmp_path, "global_statistics", rows, painted=True)
    table = plot.table(1).set_index(["panel", "label"])["y"]
    assert table["all attended tokens", "local scores"] == pytest.approx(4 / 6)  # 0 2 7 8 9 and 0 1 7 8 9
    assert table["without the recent window", "local scores"] == pytest.approx(1 / 3)  # 0 2 and 0 1
    assert table["all attended tokens", "recent tokens only"] == pytest.approx(3 / 7)
    assert table["without the recent window", "as many tokens drawn at random"] == pytest.approx(
        (4 / 7) / (4 - 4 / 7)
    )


def test_the_greedy_ratio_is_never_decided_and_names_missing_data(tmp_path):
    rows = [fake_row(layer=layer, kv_head=h, mass_recall=0.7) for layer in (0, 9) for h in range(2)]
    plot = draw(tmp_path, "greedy_ratio", rows)
    assert plot.verdicts[0].outcome == UNTESTABLE
    assert "100% of heads above; row minima are not in these results" in plot.verdicts[0].numbers
    plot = draw(
        tmp_path, "greedy_ratio", [row | {"mass_recall_min": 0.4} for row in rows], more=["mass_recall_min"]
    )
    assert "worst row 0.400" in plot.verdicts[0].numbers
    assert set(plot.table()["panel"]) == {"mean over rows", "worst row"}


def test_a_table_has_a_row_for_each_name_also_without_results_or_budget(tmp_path):
    rows = [fake_row("h2o", budget=b, kv_head=h, rel_err=0.2) for b in (64, 128) for h in range(2)]
    rows += [fake_row("exact", budget="", kv_head=h, rel_err=0.1) for h in range(2)]
    wanted = [
        {"name": name, "select": {"method": m}}
        for name, m in (("H2O", "h2o"), ("full", "exact"), ("gone", "tova"))
    ]
    plot = draw(tmp_path, "error_table", rows, {"rows": wanted}, painted=True)
    table = plot.table()
    assert table[["name", "budget_tokens", "y"]].fillna(-1).values.tolist() == [
        ["H2O", 64, 0.2],
        ["H2O", 128, 0.2],
        ["full", 0, 0.1],
        ["gone", -1, -1],
    ]
    assert "Without a result: gone." in plot.figures[0].caption


ROWS = [[1.0], [0.6, 0.4], [0.5, 0.3, 0.2], [0.3, 0.2, 0.1, 0.4]]


def test_written_rows_are_the_softmax_of_the_toy_trace(tmp_path):
    write_toy_trace(tmp_path / "toy.h5", ROWS)
    trace = Recorded(tmp_path / "toy.h5")
    q, k = (trace.tensor("0", 0, name)[0] for name in "qk")
    for t, row in enumerate(ROWS):
        weights = np.exp(k[: t + 1] @ q[t])
        assert (weights / weights.sum()).tolist() == pytest.approx(row, abs=1e-6)


@pytest.mark.parametrize("rows", [[[0.5]], [[1.0], [1.0]], [[1.0], [0.0, 1.0]]])
def test_rows_that_are_no_probabilities_are_refused(tmp_path, rows):
    with pytest.raises(ValueError, match="positive numbers that sum to 1"):
        write_toy_trace(tmp_path / "toy.h5", rows)


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
def test_token_3_is_evicted_after_step_4(tmp_path):
    plot = make_figure(read_figure_config(ROOT / "configs/figures/h2o_fig3.yaml"), tmp_path, RunOptions())
    assert [verdict.outcome for verdict in plot.verdicts] == [HOLDS, HOLDS]
    table = pd.read_csv(plot.figures[0].csv)
    fifth = table[(table["label"] == table["label"][0]) & (table["step"] == 5)].set_index("token")[
        "probability"
    ]
    assert fifth[1] == pytest.approx(0.3 / 0.95, abs=1e-5)  # renormalised without token 3
    assert math.isclose(fifth[3], 0, abs_tol=1e-9)
