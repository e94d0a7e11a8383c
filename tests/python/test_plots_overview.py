"""The overview figures: numbers checked by hand, and unusual input."""

import io
import json
from dataclasses import replace
from pathlib import Path

import h5py
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from caught_figures import caught_figures, pictures
from fake_figure import sketch
from kvanalysis import load
from kvanalysis.budgets.regret import ladder, rung_labels
from kvanalysis.drawing.head_maps import short
from kvanalysis.drawing.style import PAGE_WIDTH, styled
from kvanalysis.errors import FigureError
from kvanalysis.figures.config import read_figure_config
from kvanalysis.figures.context import Context
from kvanalysis.plots import OVERVIEW, pictures_of
from kvanalysis.plots.run import (
    best_method_map,
    error_over_position,
    error_vs_budget,
    error_vs_bytes,
    layer_head_map,
    needle_recall,
    prefix_error,
    rank_table,
    regret_ladder,
)
from kvanalysis.plots.run.positions import along_rows
from kvanalysis.stats.families import families, middle_budget, present, spread
from kvanalysis.stats.intervals import mean_interval, mean_intervals
from test_kvanalysis_fake import COLUMNS, TOKENS, failed_row, fake_row, write_results

ONESHOT = {"phase": "oneshot"}


def frame(folder, rows):
    extra = [name for row in rows for name in row if name not in COLUMNS]
    return load(write_results(folder, rows, columns=[*COLUMNS, *dict.fromkeys(extra)]))


def drawn(plot, folder, rows):
    """The Pictures, and the numbers of the first one as read back from its file."""
    found = pictures(plot, frame(folder, rows))
    return found, pd.read_csv(io.StringIO(found[0].table.to_csv(index=False, float_format="%.9g")))


def heads(method, errors, params=None, budget=64, **changes):
    return [fake_row(method, params, budget, kv_head=h, rel_err=e, **changes) for h, e in enumerate(errors)]


def layers(method, errors):
    return [fake_row(method, layer=i, rel_err=e) for i, e in enumerate(errors)]


# Families


def test_methods_compete_only_where_a_budget_means_the_same(tmp_path):
    rows = [
        fake_row("h2o"),
        fake_row("snapkv", ONESHOT, peak_kept_tokens=320),
        fake_row("quest", peak_kept_tokens=TOKENS),
        fake_row("topk_oracle"),
        fake_row("qjl", budget=""),
        failed_row(method="tova"),
    ]
    found = families(frame(tmp_path, rows))
    assert dict(zip(found["method"], found["family"], strict=True)) == {
        "h2o": "stream", "snapkv": "oneshot", "quest": "reads",
    }  # fmt: skip
    assert present(found) == []
    assert present(found, least=1) == ["stream", "oneshot", "reads"]


def test_the_middle_budget_is_one_at_which_most_methods_were_run(tmp_path):
    rows = [fake_row(method, budget=b) for method in ("h2o", "tova") for b in (64, 128, 256)]
    assert middle_budget(frame(tmp_path, [*rows, fake_row(budget=512), fake_row(budget=1024)])) == 128
    assert middle_budget(frame(tmp_path, [fake_row(budget="")])) is None


def test_spread_keeps_both_ends_or_the_middle():
    assert spread([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert spread([1, 2, 3], 1) == [2]
    assert spread([1, 2], 4) == [1, 2]


# Error against bytes


def test_the_front_holds_undominated_methods_and_no_oracle(tmp_path):
    rows = [
        fake_row("a", rel_err=0.5, total_bytes=100, full_bytes=1000),
        fake_row("b", rel_err=0.6, total_bytes=200, full_bytes=1000),
        fake_row("c", rel_err=0.2, total_bytes=300, full_bytes=1000),
        fake_row("static_oracle", rel_err=0.01, total_bytes=50, full_bytes=1000),
    ]
    figures, table = drawn(error_vs_bytes, tmp_path, rows)
    front = table.set_index("label")["front_peak_share"]
    assert front[["a", "c"]].tolist() == [1, 2]
    assert front[["b", "static_oracle"]].isna().all()
    assert "a B=64 (10.0 %, 0.5); c B=64 (30.0 %, 0.2)." in figures[0].caption


def test_mean_bytes_are_drawn_next_to_the_peak_if_recorded(tmp_path):
    rows = [
        fake_row(m, kv_head=h, total_bytes=400, mean_bytes=b, full_bytes=1000)
        for m in ("a", "b")
        for h, b in enumerate((100, 300))
    ]
    _, table = drawn(error_vs_bytes, tmp_path, rows)
    assert table[["peak_share", "mean_share"]].values.tolist() == [[0.4, 0.2]] * 2


# Maps


def test_an_exact_method_does_not_set_the_scale_of_the_maps(tmp_path):
    rows = [fake_row(m, kv_head=h, rel_err=0.2) for m in ("a", "b") for h in (0, 1)]
    rows += [fake_row("exact", budget="", kv_head=h, rel_err=3e-7) for h in (0, 1)]
    figures, table = drawn(layer_head_map, tmp_path, rows)
    assert set(table["label"]) == {"a", "b"}
    assert "Mean over 2 methods" in figures[0].caption


def test_the_map_averages_texts_and_names_the_hardest_head(tmp_path):
    rows = [
        fake_row("h2o", prompt=prompt, layer=layer, rel_err=error + shift)
        for prompt, shift in (("a", 0.0), ("b", 0.2))
        for layer, error in ((0, 0.1), (7, 0.5))
    ]
    figures, table = drawn(layer_head_map, tmp_path, rows)
    assert table[["layer", "rel_err_out_mean"]].values.tolist() == [
        [0, pytest.approx(0.2)],
        [7, pytest.approx(0.6)],
    ]
    assert "hardest head layer 7 kv head 0 (0.6)" in figures[0].caption


def test_the_best_method_of_a_head_is_named_with_its_ties(tmp_path):
    rows = heads("h2o", [0.1, 0.3]) + heads("tova", [0.2, 0.302]) + heads("topk_oracle", [0.01, 0.01])
    _, table = drawn(best_method_map, tmp_path, rows)
    assert table["best"].tolist() == ["h2o", "h2o"]
    assert table["tied"].fillna("").tolist() == ["", "tova"]
    assert table["letter"].tolist() == ["A", "A"]
    assert table["runner_up_error"].tolist() == [0.2, 0.302]


def test_cells_hold_two_digits():
    assert [short(x) for x in (0.123, 0.997, 1.64, 12.6, 0.001, 0)] == [
        ".12",
        "1.0",
        "1.6",
        "13",
        "1e-3",
        "0",
    ]


# Shares of the cache


META_OF_PROMPT = {"config": {"budget": {"share_of_cache": [0.1, 0.2], "of": "prompt"}}}


def at_shares():
    """Two streaming and two one-shot methods at two shares, each with its own tokens, on ten heads."""
    counts = {"h2o": (61, 122), "window": (64, 128), "snapkv": (63, 126), "subgen": (62, 125)}
    rows = []
    for place, (method, tokens) in enumerate(counts.items()):
        for share, budget in zip(("0.1", "0.2"), tokens, strict=True):
            more = {f"rel_err_quarter_{part}": 0.1 for part in (1, 2, 3, 4)}
            more |= {"rel_err_prefix_mean": 0.3, "budget_share": share}
            phase = ONESHOT if place > 1 else None
            for layer in range(5):
                rows += heads(
                    method, [0.1 + place / 50, 0.2 - place / 50], phase, budget, layer=layer, **more
                )
    return rows


def share_frame(folder):
    found = frame(folder, at_shares())
    found.attrs["meta"] = META_OF_PROMPT
    return found


def test_methods_compete_at_the_share_that_was_requested_not_at_equal_tokens(tmp_path):
    found = share_frame(tmp_path)
    ranks, best = (pictures(plot, found)[0].table for plot in (rank_table, best_method_map))
    assert ranks["budget_share"].tolist() == ["0.1"] * 2 + ["0.2"] * 2 + ["0.1"] * 2 + ["0.2"] * 2
    assert set(ranks["n_methods"]) == {2}
    assert best.groupby(["family", "budget_share"]).size().tolist() == [10, 10, 10, 10]
    position, maps = (pictures(plot, found)[0].table for plot in (error_over_position, layer_head_map))
    assert set(position["label"]) == set(maps["label"]) == set(found["label"])


@pytest.mark.parametrize(
    "plot", [rank_table, best_method_map, error_over_position, layer_head_map, prefix_error]
)
def test_a_figure_at_shares_says_the_share_and_its_whole(plot, tmp_path):
    figures, found = caught_figures(plot, share_frame(tmp_path))
    for picture in found:
        assert "B=" not in picture.caption and "B =" not in picture.title
    for figure in figures:
        texts = [text.get_text() for text in figure.findobj(mpl.text.Text)]
        said = " ".join(" ".join(texts).split())
        assert "B =" not in said and "B=" not in said
        assert "Shares are of the prompt’s full cache (bytes after the cut)" in said
    assert any("10 %" in text or "20 %" in text for text in (found[0].title, found[0].caption))


def asked(label, error, budget, share):
    return heads(label, [error], budget=budget, budget_share=share)


def test_a_cell_of_two_shares_competes_at_both(tmp_path):
    rows = asked("a", 0.1, 61, "0.1;0.2") + asked("b", 0.2, 64, "0.1") + asked("b", 0.2, 128, "0.2")
    ranks = pictures(rank_table, frame(tmp_path, rows))[0].table
    found = list(zip(ranks["budget_share"], ranks["label"], strict=True))
    assert found == [("0.1", "a"), ("0.1", "b"), ("0.2", "a"), ("0.2", "b")]


def test_budgets_in_tokens_beside_shares_stay_budgets_of_their_own(tmp_path):
    rows = asked("a", 0.1, 64, "") + asked("b", 0.1, 64, "")
    rows += asked("a", 0.1, 61, "0.1") + asked("b", 0.2, 63, "0.1")
    ranks = pictures(rank_table, frame(tmp_path, rows))[0].table
    assert ranks["budget_share"].fillna("").tolist() == ["0.1", "0.1", "", ""]
    assert ranks["budget_tokens"].tolist()[2:] == [64, 64]


# Ranks


def test_ranks_wins_and_the_map_use_the_measure_that_the_answer_uses(tmp_path):
    far = [row | {"cosine_distance_sq": 0.5} for row in heads("a", [0.1, 0.1])]
    near = [row | {"cosine_distance_sq": 0.4} for row in heads("b", [0.2, 0.2])]
    found = frame(tmp_path, far + near)
    ranks, wins = pictures(rank_table, found)
    [best] = pictures(best_method_map, found)
    assert ranks.table["label"].tolist() == ["b", "a"]
    assert ranks.table["cosine_distance_sq"].tolist() == [0.4, 0.5]
    assert wins.table[["first_error", "second_error"]].values.tolist() == [[0.5, 0.4]]
    assert set(best.table["best"]) == {"b"}
    words = [t.get_text() for t in best.draw(PAGE_WIDTH).findobj(mpl.text.Text)]
    assert "squared cosine distance" in " ".join(" ".join(words).split())


def test_ranks_and_pairs_are_those_of_the_heads(tmp_path):
    rows = layers("a", [0.1, 0.2, 0.3, 0.1, 0.2]) + layers("b", [0.2, 0.1, 0.4, 0.2, 0.1])
    rows += layers("c", [0.5, 0.5, 0.4, 0.5, 0.5])
    figures, table = drawn(rank_table, tmp_path, rows)
    found = table.set_index("label")
    assert found["mean_rank"].tolist() == pytest.approx([7 / 5, (6 + 2.5) / 5, (12 + 2.5) / 5])
    assert found[["wins", "ties", "losses"]].values.tolist() == [[8, 0, 2], [6, 1, 3], [0, 1, 9]]
    low, high = mean_interval([1, 2, 1, 1, 2])[1:]
    assert low < 1  # no rank is below the first
    assert found.loc["a", ["rank_low", "rank_high"]].tolist() == pytest.approx([1, high])
    assert found.loc["c", "rank_high"] == 3 < mean_interval([3, 3, 2.5, 3, 3])[2]
    assert len(figures[0].more["rank_pairs"]) == 3
    assert "2 of m = 3 pairs differ significantly (Holm over all, 95%)" in figures[0].caption
    header, cells = figures[0].cells
    assert len(header) == len(cells[0])
    assert cells[0][2] == ("a", "a")


def test_the_map_of_errors_says_that_the_answer_can_have_another_order(tmp_path):
    rows = [row for layer in range(5) for row in heads("a", [0.1, 0.2], layer=layer)]
    told = "The answer ranks by the squared cosine distance"
    for folder, more, said in (("old", {}, False), ("new", {"cosine_distance_sq": 0.1}, True)):
        found = frame(tmp_path / folder, [row | more for row in rows])
        [figure, _], _ = caught_figures(layer_head_map, found, widths=2)
        assert (told in " ".join(" ".join(text.get_text() for text in figure.texts).split())) is said


def test_stream_and_oneshot_methods_are_ranked_separately(tmp_path):
    rows = [row for m in "ab" for row in heads(m, [0.1, 0.2]) + heads(m, [0.1, 0.2], ONESHOT)]
    figures, table = drawn(rank_table, tmp_path, rows)
    assert table.groupby("family")["n_methods"].max().to_dict() == {"oneshot": 2, "stream": 2}
    assert [figure.name for figure in figures[1:]] == ["wins_stream", "wins_oneshot"]


def test_a_rank_needs_the_heads_that_all_methods_have(tmp_path):
    rows = [*heads("a", [0.1, 0.2]), fake_row("b", rel_err=0.3), failed_row(method="b", kv_head=1)]
    _, table = drawn(rank_table, tmp_path, rows)
    assert table["n_units"].tolist() == [1, 1]


# Position


def with_curves(folder, rows, curves):
    """Writes `curves`, {label: rel_err [G, rows]}, for the cells of the method with that label."""
    found = frame(folder, rows)
    with h5py.File(folder / "curves.h5", "w") as file:
        for key, method in zip(found["key"], found["method"], strict=True):
            if method in curves:
                file[f"{key}/rel_err"] = np.array(curves[method])
                file[f"{key}/rows"] = np.arange(768, 768 + len(curves[method][0]))
    return found


def test_curves_average_the_group_and_skip_rows_without_an_output(tmp_path):
    found = with_curves(tmp_path, [fake_row("a")], {"a": [[0.1, 0.3, -1], [0.3, -1, -1]]})
    table, words = along_rows(found)
    assert table["position"].tolist() == [768, 769, 770]
    assert table["rel_err_mean"].tolist()[:2] == pytest.approx([0.2, 0.3])
    assert "over 1 rows" in words


def test_curves_are_rolled_and_drawn_in_a_panel_for_each_family(tmp_path):
    rows = heads("a", [0.1, 0.1]) + heads("b", [0.1, 0.1], ONESHOT)
    found = with_curves(tmp_path, rows, {"a": [np.linspace(0.1, 0.2, 64)], "b": [np.full(64, 0.4)]})
    [figure] = pictures(error_over_position, found)
    table = figure.table
    assert table.groupby("label")["family"].first().to_dict() == {"a": "stream", "b": "oneshot"}
    assert table.loc[table["label"] == "b", "rel_err_mean"].tolist() == pytest.approx([0.4] * 64)


def test_intervals_that_end_near_0_do_not_press_the_curves_together(tmp_path):
    rows = [fake_row("a", layer=layer) for layer in range(5)] + heads("b", [0.01, 0.01], ONESHOT)
    found = with_curves(tmp_path, rows, {"b": [np.full(64, 0.01)]})
    levels = [0.064] * 4 + [0.244]  # errors of the layers: mean 0.1, and an interval that starts at 0.00005
    with h5py.File(tmp_path / "curves.h5", "r+") as file:
        for key, level in zip(found.loc[found["method"] == "a", "key"], levels, strict=True):
            file[f"{key}/rel_err"] = np.full((1, 64), level)
            file[f"{key}/rows"] = np.arange(768, 832)
    [figure] = pictures(error_over_position, found)
    assert 0 < figure.table["rel_err_low"].min() < 0.001
    for axes in figure.draw(PAGE_WIDTH).axes:
        assert axes.get_yscale() == "log"
        assert axes.get_ylim()[0] == pytest.approx(
            0.005
        )  # half of the lowest mean, which is in another panel


def test_panels_that_share_an_axis_hold_the_curves_of_all(tmp_path):
    rows = heads("a", [0.5, 0.5]) + heads("b", [0.01, 0.01], ONESHOT)
    found = with_curves(tmp_path, rows, {"a": [np.linspace(0.4, 0.5, 64)], "b": [np.full(64, 0.01)]})
    [figure] = pictures(error_over_position, found)
    for axes in figure.draw(PAGE_WIDTH).axes:
        assert axes.get_ylim()[0] < 0.01


def test_without_curves_the_quarters_of_the_rows_are_drawn(tmp_path):
    quarters = {f"rel_err_quarter_{i}": i / 10 for i in (1, 2, 3, 4)}
    _, table = drawn(error_over_position, tmp_path, heads("a", [0.2, 0.2], **quarters))
    assert table["rel_err_mean"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_intervals_of_many_columns_are_those_of_each(tmp_path):
    values = np.random.default_rng(3).random((7, 4))
    means, lows, highs = mean_intervals(values)
    for column in range(4):
        assert (means[column], lows[column], highs[column]) == pytest.approx(mean_interval(values[:, column]))


# Regret


def oracles(static, topk):
    return heads("static_oracle", static, ONESHOT | {"per_head": False}) + heads(
        "topk_oracle", topk, {"per_head": False}
    )


def test_regret_is_the_error_over_the_static_oracle_s(tmp_path):
    rows = oracles([0.1, 0.2], [0.1, 0.1]) + heads("snapkv", [0.4, 0.2], ONESHOT)
    table = ladder(frame(tmp_path, rows)).set_index("label")
    assert table.loc["snapkv", "regret"] == pytest.approx(2.0)  # geometric mean of 4 and 1
    assert table.loc["snapkv", "regret_of_means"] == pytest.approx(0.3 / 0.15)
    assert table.loc["static_oracle", "regret"] == pytest.approx(1)


def test_the_parts_start_at_the_oracle_whose_budget_means_the_same(tmp_path):
    parts = {"rel_err_set_mean": 0.3, "rel_err_normaliser_mean": 0.5, "rel_err_numerator_mean": 0.6}
    rows = [*oracles([0.1, 0.2], [0.1, 0.1])]
    rows += heads("uniform", [0.4, 0.4], ONESHOT, **parts) + heads("h2o", [0.3, 0.3], **parts)
    table = ladder(frame(tmp_path, rows)).set_index("label")
    assert table.loc["uniform", ["selection", "beyond_set"]].tolist() == pytest.approx([0.15, 0.1])
    assert table.loc["h2o", ["selection", "beyond_set"]].tolist() == pytest.approx([0.2, 0.0])
    assert table.loc["h2o", "reference"] == "topk_oracle"
    figures, _ = drawn(regret_ladder, tmp_path, rows)
    assert [figure.name for figure in figures] == ["regret_ladder", "error_parts"]


def test_only_oracles_with_default_parameters_are_rungs(tmp_path):
    rows = [
        fake_row("topk_oracle", {"variant": "with_h2o"}),
        fake_row("topk_oracle", {"per_head": True, "variant": "default"}),
        fake_row("static_oracle", {"sinks": 4}),
    ]
    found = rung_labels(frame(tmp_path, rows))
    assert list(found) == ["topk per head"]


# Prefix and needles


def test_the_prefix_error_is_next_to_the_error(tmp_path):
    rows = heads("snapkv", [0.1, 0.3], ONESHOT, rel_err_prefix_mean=0.4) + heads(
        "h2o", [0.2, 0.2], rel_err_prefix_mean=""
    )
    figures, table = drawn(prefix_error, tmp_path, rows)
    assert table["label"].tolist() == ["snapkv"]
    assert table[["rel_err_out_mean", "rel_err_prefix_mean", "ratio"]].values.tolist() == [
        pytest.approx([0.2, 0.4, 2])
    ]
    assert "B=64 2.00" in figures[0].caption


def test_a_method_without_the_drawn_budgets_takes_no_row(tmp_path):
    rows = heads("snapkv", [0.1, 0.3], ONESHOT, rel_err_prefix_mean=0.4)
    rows += heads("balancekv", [0.1, 0.3], ONESHOT, budget=100, rel_err_prefix_mean=0.5)
    figures, _ = caught_figures(prefix_error, frame(tmp_path, rows))
    page, column = ([text.get_text() for text in each.axes[0].get_yticklabels()] for each in figures)
    assert (page, column) == (["snapkv", "balancekv"], ["snapkv"])


def test_needles_are_shown_span_by_span(tmp_path):
    spans = json.dumps({"needle_mass_1": 0.9, "needle_mass_2": 0.1})
    _, table = drawn(needle_recall, tmp_path, heads("h2o", [0.1, 0.2], needle_mass=0.5, extras=spans))
    assert table[["needle_mass", "needle_mass_1", "needle_mass_2", "n_units"]].values.tolist() == [
        [0.5, 0.9, 0.1, 2]
    ]


# The kind of a configuration

FIGURES = sorted((Path(__file__).parents[2] / "configs/figures").glob("*.yaml"))
CONFIGS = [path for path in FIGURES if "kind: overview\n" in path.read_text()]


def overview_of(folder, options, steps):
    """A Context of kind overview with finished run steps."""
    for step, rows in steps.items():
        frame(folder / step, rows)
    config = read_figure_config(CONFIGS[0])
    return Context(replace(config, name="mine", options=options), folder, [])


def test_runs_are_combined_under_distinct_names(tmp_path):
    steps = {"run": heads("h2o", [0.1, 0.2]), "late": heads("h2o", [0.3, 0.4])}
    context = overview_of(tmp_path, {"plots": ["rank_table"], "runs": {"run": "", "late": ", late"}}, steps)
    figures = sketch(context).figures
    assert [figure.name for figure in figures] == ["rank_table", "wins_stream"]
    assert figures[0].table["label"].tolist() == ["h2o", "h2o, late"]


def test_an_unknown_overview_plot_is_refused_with_the_known_ones(tmp_path):
    context = overview_of(tmp_path, {"plots": ["pie"]}, {"run": heads("h2o", [0.1, 0.2])})
    with pytest.raises(FigureError, match=r"no overview plot pie; plots: error_vs_bytes, accuracy, "):
        sketch(context)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_configurations_name_overview_plots_and_runs_that_exist(path):
    config = read_figure_config(path)
    assert config.kind == "overview"
    known = {plot.__name__.rpartition(".")[2] for plot in (*OVERVIEW, error_vs_budget)}
    assert set(config.options["plots"]) <= known
    assert set(config.options.get("runs", {"run": ""})) == {step.name for step in config.steps}


# Unusual input

ODD = {
    "one method, one head": [fake_row()],
    "only failures": [failed_row(), failed_row(kv_head=1)],
    "only oracles": oracles([0.1, 0.2], [0.1, 0.1]),
    "no budget anywhere": [fake_row("qjl", budget="", kv_head=h) for h in (0, 1)],
    "only the exact cache": [fake_row("exact", budget="", rel_err=0.0, kv_head=h) for h in (0, 1)],
    "a static oracle without error": oracles([0.0, 0.0], [0.1, 0.1]) + heads("h2o", [0.1, 0.2]),
    "a method that failed on all heads": [
        *heads("a", [0.1, 0.2]),
        failed_row(method="b"),
        failed_row(method="b", kv_head=1),
    ],
    "budgets that no two methods share": [*heads("a", [0.1, 0.2]), *heads("b", [0.1, 0.2], budget=128)],
    "empty new columns": heads(
        "a", [0.1, 0.2], rel_err_prefix_mean="", needle_mass="", mean_bytes="", rel_err_set_mean=""
    ),
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD.keys())
def test_odd_results_are_drawn_or_left_out(tmp_path, rows):
    found = frame(tmp_path, rows)
    with styled():
        for picture in pictures_of(found, OVERVIEW[1:]):
            assert len(picture.table)
            for _, width in picture.widths:
                picture.draw(width).draw_without_rendering()


def test_panels_of_one_share_hold_every_bar_and_no_empty_legend(tmp_path):
    """The first panel must not fix the axis that all share; one point alone is no front."""
    rows = [
        fake_row(method, phase, kv_head=0, layer=layer, rel_err=error * (1 + layer % 3))
        for method, error, phase in (("h2o", 0.2, None), ("snapkv", 0.5, ONESHOT))
        for layer in range(6)
    ]
    figures, (picture,) = caught_figures(error_vs_bytes, frame(tmp_path, rows), widths=1)
    top = picture.table["loss_high"].max()
    assert all(axes.get_ylim()[1] >= top for axes in figures[0].axes)
    assert not figures[0].legends[0].get_texts()
