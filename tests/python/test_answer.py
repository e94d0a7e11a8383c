"""The answer at equal bytes: numbers checked by hand, significant differences, refusals."""

import numpy as np
import pytest
from front_door import command as cli
from kvanalysis import load
from kvanalysis.answer.compare import compare_at
from kvanalysis.answer.selection import shares_in
from kvanalysis.answer.sizes import default_size
from kvanalysis.errors import ConfigError, ResultsError
from kvanalysis.page.answer import answer_section
from kvanalysis.plots.run.error_vs_bytes import bytes_points
from kvanalysis.plots.run.one_trace import OneTrace
from kvanalysis.stats.summary import summarise
from kvbase.selections import layer_words, layers_in
from test_kvanalysis_fake import COLUMNS, failed_row, fake_row, write_results

LAYERS = range(6)
FULL = 262144  # bytes of fake_row's full cache: 1024 tokens of 256 bytes
# Errors differ more between layers than between methods.
BASE = np.array([0.10, 0.30, 0.20, 0.25, 0.15, 0.40])


def method_rows(method, factor, budget=64, share=0.2, **more):
    """One head per layer with `factor` times the layer's error, at a share of the full cache's bytes."""
    return [
        fake_row(
            method, layer=layer, budget=budget, rel_err=factor * BASE[layer], total_bytes=share * FULL, **more
        )
        for layer in LAYERS
    ]


def answered(folder, rows, share=0.2, **options):
    return compare_at(load(write_results(folder, rows)), share, **options)


def row_of(answer, label):
    return answer.ranking.set_index("label").loc[label]


def test_the_lowest_mean_is_first_and_differences_are_of_means(tmp_path):
    answer = answered(tmp_path, method_rows("h2o", 1.5) + method_rows("tova", 1.0))
    assert list(answer.ranking["label"]) == ["tova", "h2o"]
    assert answer.best == "tova"
    assert row_of(answer, "tova")["error"] == pytest.approx(BASE.mean())
    assert row_of(answer, "h2o")["difference"] == pytest.approx(BASE.mean() / 2)


def test_a_difference_common_to_all_layers_is_significant_and_a_contradicted_one_is_not(tmp_path):
    rows = method_rows("h2o", 1.5) + method_rows("tova", 1.0)
    sure = answered(tmp_path / "a", rows)
    assert sure.winner_decided
    assert sure.sentence.startswith(
        "At 20 % of the full cache’s bytes at the peak, tova has the lowest error, 0.233; h2o, the next, "
        "has 1.50 times as much in the typical layer [1.50 … 1.50]; it is significantly worse. Error: "
    )
    signs = [1, -1, 1, -1, 1, -1]
    crossing = [
        dict(row, rel_err_out_mean=row["rel_err_out_mean"] * (1 + 0.2 * s))
        for row, s in zip(method_rows("h2o", 1.0), signs, strict=True)
    ]
    unsure = answered(tmp_path / "b", crossing + method_rows("tova", 1.0))
    assert not unsure.winner_decided
    assert "there is no clear winner: " in unsure.sentence
    assert " is not significantly worse" in unsure.sentence
    assert row_of(unsure, "h2o" if unsure.best == "tova" else "tova")["layers_more"] == 3
    assert unsure.n_blocks == 6


def test_one_bad_method_makes_no_winner_of_several_good_ones(tmp_path):
    """Methods that are not significantly worse than the first may be the best, too."""
    rows = []
    for i, name in enumerate(("tova", "h2o", "buzz")):  # layers contradict one another
        for row in method_rows(name, 1 + i / 100):
            factor = 1 + 0.3 * np.sin(7 * row["layer"] + 2 * i)
            rows.append(row | {"rel_err_out_mean": row["rel_err_out_mean"] * factor})
    answer = answered(tmp_path, rows + method_rows("window", 20.0))
    assert not answer.winner_decided
    first, second, third, _ = answer.ranking["name"]
    lowest = f"{answer.ranking['error'].iloc[0]:.3g}"
    assert (
        f"peak, 3 of 4 methods may be the best: {first} with the lowest error ({lowest}), {second} and"
        f" {third}; significantly worse: window. Error: " in answer.sentence
    )


def test_a_large_insignificant_difference_of_means_is_explained(tmp_path):
    rows = method_rows("tova", 1.0) + method_rows("window", 1.1) + method_rows("buzz", 0.9)
    for at in (6, 12):  # the first layer of window and of buzz
        rows[at]["rel_err_out_mean"] = 9.0
    answer = answered(tmp_path, rows)
    assert row_of(answer, "window")["layers_more"] == 6
    assert row_of(answer, "buzz")["layers_more"] == 1
    assert "Not significant although the mean error is more than twice that of tova" in " ".join(
        answer.caveats
    )


def test_a_method_that_is_better_in_the_typical_layer_is_named(tmp_path):
    rows = method_rows("tova", 1.0) + method_rows("window", 0.4)
    rows[-1] |= {"rel_err_out_mean": 3.0}
    answer = answered(tmp_path, rows)
    assert (answer.best, row_of(answer, "window")["layers_more"]) == ("tova", 1)
    assert row_of(answer, "window")["ratio"] < 1
    assert any(
        each.startswith("window has a lower error than tova in the typical layer") for each in answer.caveats
    )


def test_what_holds_for_all_shares_is_printed_once(tmp_path, capsys):
    rows = method_rows("h2o", 1.5) + method_rows("tova", 1.0)
    write_results(tmp_path, rows)
    assert cli.main(["compare", str(tmp_path), "--at", "20%,30%"]) == 0
    text = capsys.readouterr().out
    assert (text.count("At 20 % of"), text.count("At 30 % of")) == (1, 1)
    assert (
        text.count("- Error: ") == text.count("- Significantly worse: ") == text.count("For all shares:") == 1
    )


def test_with_four_layers_nothing_is_significant(tmp_path):
    rows = [row for row in method_rows("h2o", 9) + method_rows("tova", 1) if row["layer"] < 4]
    answer = answered(tmp_path, rows)
    assert not answer.winner_decided
    assert np.isnan(row_of(answer, "h2o")["p"])
    assert any("With 4 layers no difference can be significant" in each for each in answer.caveats)


def test_heads_of_a_layer_count_once(tmp_path):
    one = answered(tmp_path / "a", method_rows("h2o", 1.5) + method_rows("tova", 1.0))
    rows = [
        dict(row, kv_head=head, key=f"{row['key']}{head}")
        for row in method_rows("h2o", 1.5) + method_rows("tova", 1.0)
        for head in range(3)
    ]
    three = answered(tmp_path / "b", rows)
    assert (three.n_units, three.n_blocks) == (18, 6)
    assert row_of(three, "h2o")["p"] == pytest.approx(row_of(one, "h2o")["p"])


def test_the_correction_counts_the_comparisons_with_the_best(tmp_path):
    others = [row for i in range(4) for row in method_rows(f"m{i}", 2 + i)]
    factors = (1.2, 1.3, 1.1, 1.25, 1.15, 1.2)
    near = [
        row | {"rel_err_out_mean": row["rel_err_out_mean"] * factor}
        for row, factor in zip(method_rows("h2o", 1.0), factors, strict=True)
    ]
    two = answered(tmp_path / "a", near + method_rows("tova", 1.0))
    six = answered(tmp_path / "b", near + method_rows("tova", 1.0) + others)
    one_sided = row_of(two, "h2o")["p"]
    assert 0 < one_sided < 1e-3
    assert row_of(six, "h2o")["p"] == pytest.approx(5 * one_sided)


def test_between_two_budgets_the_error_is_a_power_of_the_bytes(tmp_path):
    rows = method_rows("h2o", 0.4, 64, 0.1) + method_rows("h2o", 0.1, 256, 0.4) + method_rows("tova", 0.3)
    answer = answered(tmp_path, rows)
    # 0.2 is halfway between 0.1 and 0.4 on a logarithmic scale: the geometric mean of 0.4 and 0.1.
    assert row_of(answer, "h2o")["error"] == pytest.approx(0.2 * BASE.mean())
    assert row_of(answer, "h2o")["how"] == "between budget 64 (10.0 %) and budget 256 (40.0 %)"
    assert any(each.startswith("Interpolated") and "h2o" in each for each in answer.caveats)


def test_nothing_is_extrapolated_and_the_reason_is_stated(tmp_path):
    rows = method_rows("h2o", 1) + method_rows("tova", 1, 32, 0.1) + method_rows("snapkv", 1, 128, 0.3)
    answer = answered(tmp_path, rows)
    assert list(answer.compared["label"]) == ["h2o"]
    assert row_of(answer, "tova")["how"] == "largest size here is 10.0 % of the full cache"
    assert row_of(answer, "snapkv")["how"] == "smallest size here is 30.0 % of the full cache"
    assert "h2o is the only method with a number, its error 0.233" in answer.sentence


def test_a_budget_just_below_the_share_represents_it(tmp_path):
    rows = method_rows("h2o", 0.4, 64, 0.197) + method_rows("h2o", 0.1, 256, 0.4) + method_rows("tova", 1)
    row = row_of(answered(tmp_path, rows), "h2o")
    assert (row["how"], row["share"]) == ("budget 64", pytest.approx(0.197, abs=1e-5))
    assert row["error"] == pytest.approx(0.4 * BASE.mean())


def test_neighbours_are_chosen_by_bytes_not_budgets(tmp_path):
    sizes = {64: 0.25, 128: 0.15, 256: 0.4}
    rows = [row for budget, share in sizes.items() for row in method_rows("h2o", 1, budget, share)]
    row = row_of(answered(tmp_path, rows + method_rows("tova", 1)), "h2o")
    assert row["how"] == "between budget 128 (15.0 %) and budget 64 (25.0 %)"


def test_heads_at_a_share_are_one_instance_even_if_tokens_differ(tmp_path):
    asked = [
        dict(row, budget_tokens=60 + row["layer"], budget_share="0.1;0.2", total_bytes=0.15 * FULL)
        for row in method_rows("h2o", 1)
    ]
    rows = asked + [dict(row, budget_share="") for row in method_rows("tova", 1)]
    folder = write_results(tmp_path, rows, columns=(*COLUMNS, "given", "budget_share"))
    row = row_of(compare_at(load(folder), 0.2), "h2o")
    assert (row["how"], row["share"]) == ("budgets 60 to 65", pytest.approx(0.15, abs=1e-5))


def test_instances_that_are_equal_in_every_head_are_one_contender(tmp_path):
    rows = method_rows("snapkv", 1) + method_rows("pyramidkv", 1 + 1e-9) + method_rows("h2o", 1.5)
    answer = answered(tmp_path, rows)
    assert row_of(answer, "snapkv")["equals"] == "pyramidkv"


def test_oracles_and_the_exact_cache_do_not_compete(tmp_path):
    rows = method_rows("h2o", 1) + method_rows("topk_oracle", 0.1) + method_rows("exact", 0, "", 1.0)
    assert list(answered(tmp_path, rows).ranking["label"]) == ["h2o"]


def test_failed_cells_are_no_numbers_and_seeds_are_averaged_first(tmp_path):
    rows = method_rows("h2o", 1) + [failed_row(method="h2o", layer=layer, seed=1) for layer in LAYERS]
    rows += [
        row for seed, factor in ((0, 1.0), (1, 3.0)) for row in method_rows("uniform", factor, seed=seed)
    ]
    answer = answered(tmp_path, rows)
    assert row_of(answer, "uniform")["error"] == pytest.approx(2 * BASE.mean())
    assert row_of(answer, "h2o")["error"] == pytest.approx(BASE.mean())


def test_layers_measures_and_phases_are_chosen(tmp_path):
    rows = [dict(row, cosine_mean=1 - row["rel_err_out_mean"] ** 2) for row in method_rows("h2o", 1)]
    rows += method_rows("snapkv", 0.5, params={"phase": "oneshot"})
    late = answered(tmp_path, rows, layers=[4, 5], measure="cosine", phase="stream")
    assert late.layers == (4, 5)
    assert row_of(late, "h2o")["error"] == pytest.approx((0.15**2 + 0.4**2) / 2)
    assert list(late.ranking["label"]) == ["h2o"]


def test_models_are_never_ranked_together(tmp_path):
    rows = method_rows("h2o", 1) + method_rows("tova", 1, model="another", trace_id="b" * 64)
    with pytest.raises(ConfigError, match="several models"):
        answered(tmp_path, rows)


def test_without_a_compressing_method_there_is_no_comparison(tmp_path):
    with pytest.raises(ResultsError, match="nothing to compare"):
        answered(tmp_path, method_rows("exact", 0, "", 1.0))


@pytest.mark.parametrize(
    ("text", "shares"), [("20%", [0.2]), ("0.05", [0.05]), ("10%, 40%", [0.1, 0.4]), (0.3, [0.3])]
)
def test_shares_are_written_as_percents_or_as_parts(text, shares):
    assert shares_in(text) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("text", "says"), [("20", "Write --at 20%"), ("0", "a share"), ("x%", "a share"), ("120%", "a share")]
)
def test_an_invalid_share_is_refused_with_the_remedy(text, says):
    with pytest.raises(ConfigError, match=says):
        shares_in(text)


def test_layers_are_written_as_lists_and_ranges():
    there = range(18)
    assert layers_in("0,7,15-17", there) == [0, 7, 15, 16, 17]
    assert layers_in("0,10-17", [0, 7, 15, 17]) == [0, 15, 17]
    assert layers_in("every:7", [0, 6, 7, 14]) == [0, 7, 14]
    assert layers_in("all", [3, 1]) == layers_in([1, 3], [3, 1]) == [1, 3]
    assert layer_words([17, 0, 7, 15, 16]) == "0, 7, 15-17"
    for wrong in ("3-1", "a", "1,,2", "", "every:0"):
        with pytest.raises(ConfigError, match="write all, 7, 15-29"):
            layers_in(wrong, there)
    for beyond in ("18", "15-18", "99999999999", "0-99999999999", [18], []):
        with pytest.raises(ConfigError, match="there are layers 0-17"):
            layers_in(beyond, there)


def test_the_command_prints_the_sentence_first_and_a_block_for_each_share(tmp_path, capsys):
    write_results(
        tmp_path, method_rows("h2o", 1.5, 32, 0.1) + method_rows("h2o", 1.2) + method_rows("tova", 1)
    )
    assert cli.main(["compare", str(tmp_path), "--at", "10%,20%"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "At 10 % of the full cache’s bytes at the peak, h2o is the only method with a number"
    )
    assert sum(line.startswith("At ") for line in lines) == 2
    assert cli.main(["compare", str(tmp_path), "--at", "20"]) == 2
    assert "Write --at 20%" in capsys.readouterr().err


def test_methods_without_common_heads_are_left_out(tmp_path):
    rows = method_rows("h2o", 1) + method_rows("tova", 2) + method_rows("snapkv", 0.1)[:-1]
    answer = answered(tmp_path, rows)
    assert list(answer.compared["label"]) == ["h2o", "tova"]
    assert row_of(answer, "snapkv")["how"] == "5 of 6 heads have a number at this size"


def shared(folder, rows, share=0.2, **options):
    """The answer for rows with a column `budget_share`."""
    rows = [{"budget_share": "", **row} for row in rows]
    return compare_at(
        load(write_results(folder, rows, columns=(*COLUMNS, "given", "budget_share"))), share, **options
    )


def test_a_cell_that_represents_two_shares_is_in_both(tmp_path):
    asked = [
        dict(row, budget_share="0.2;0.3" if row["layer"] < 2 else "0.2") for row in method_rows("h2o", 1)
    ]
    more = [dict(row, budget_share="0.3", budget_tokens=90) for row in method_rows("h2o", 0.5, 90, 0.3)[2:]]
    answer = shared(tmp_path, asked + more + method_rows("tova", 2))
    assert len(answer.compared) == 2
    assert row_of(answer, "h2o")["error"] == pytest.approx(BASE.mean())


def test_a_cell_above_the_requested_bytes_is_not_at_the_share(tmp_path):
    """This happens when the mean over steps is bounded, or when layers that share a budget are left out."""
    asked = [dict(row, budget_share="0.2") for row in method_rows("h2o", 1, share=0.25)]
    answer = shared(tmp_path, asked + method_rows("tova", 2))
    assert row_of(answer, "h2o")["how"] == "smallest size here is 25.0 % of the full cache"


def test_two_budgets_for_one_share_are_never_averaged(tmp_path):
    asked = [
        dict(row, budget_share="0.2")
        for b, s in ((36, 0.15), (64, 0.2))
        for row in method_rows("h2o", b / 64, b, s)
    ]
    answer = shared(tmp_path, asked + method_rows("tova", 2))
    assert row_of(answer, "h2o")["how"] == "budget 64"


def test_a_quoted_name_includes_parameters_common_to_all_instances(tmp_path):
    coded = {"row_format": {"name": "int4", "group": 64}, "phase": "oneshot"}
    answer = answered(tmp_path, method_rows("h2o", 1, params=coded) + method_rows("tova", 2))
    assert row_of(answer, "h2o")["name"] == "h2o phase=oneshot int4"
    assert "peak, h2o phase=oneshot int4 has the lowest error" in answer.sentence


def test_a_quoted_name_repeats_nothing(tmp_path):
    coded = {"row_format": {"name": "int4", "group": 64}}
    answer = answered(tmp_path, method_rows("h2o", 1, params=coded) + method_rows("h2o", 2, params={}))
    assert [*answer.ranking["name"]] == ["h2o int4", "h2o"]


def test_the_exact_cache_competes_where_its_rows_are_coded(tmp_path):
    coded = {"row_format": {"name": "int4", "group": 64}}
    answer = answered(tmp_path, method_rows("exact", 0.5, "", params=coded) + method_rows("h2o", 1))
    assert answer.best == "exact int4"


def test_floors_of_the_run_are_reported_under_the_tables_label(tmp_path):
    given = {"window": 8}
    meta = {
        "unreachable": [
            {"method": "snapkv", "given": given, "share": 0.2, "floor_low": 0.348, "heads": 6, "of_heads": 6}
        ]
    }
    rows = method_rows("snapkv", 1, 256, 0.6, params=given) + method_rows("h2o", 1)
    answer = compare_at(load(write_results(tmp_path, rows, meta)), 0.2)
    assert row_of(answer, "snapkv")["how"] == "needs 34.8 % of the full cache"
    assert len(answer.ranking) == 2


def test_methods_are_chosen_by_name(tmp_path):
    rows = method_rows("h2o", 1) + method_rows("tova", 2) + method_rows("buzz", 3)
    assert list(answered(tmp_path, rows, methods=["tova", "buzz"]).ranking["label"]) == ["tova", "buzz"]


SIZED = (
    *COLUMNS,
    "given",
    "budget_share",
    "prompt_bytes",
    "prompt_full_bytes",
    "mean_bytes",
    "mean_full_bytes",
)
ONESHOT = {"phase": "oneshot"}


def sized(rows, prompt=None, mean=None, **more):
    """Rows with their bytes of a prompt of 768 tokens, and on average of a cache of 896."""
    whole = {"prompt_full_bytes": 768 * 256, "mean_full_bytes": 896 * 256, "budget_share": ""} | more
    sizes = {"prompt_bytes": prompt and prompt * 768 * 256, "mean_bytes": mean and mean * 896 * 256}
    return [row | whole | sizes for row in rows]


def of_bytes(folder, rows, of, share=0.2, meta=None, **options):
    return compare_at(load(write_results(folder, rows, meta, columns=SIZED)), share, of=of, **options)


def both_phases(**more):
    """A one-shot method that keeps 20 % of the prompt, and a streaming method with equally many tokens."""
    return [
        *sized(method_rows("snapkv", 1, 153, 0.4, params=ONESHOT), prompt=0.2, mean=0.3, **more),
        *sized(method_rows("h2o", 1.5, 153, 0.15), prompt=0.2, mean=0.17, **more),
    ]


def test_by_prompt_bytes_a_one_shot_method_competes_despite_later_tokens(tmp_path):
    answer = of_bytes(tmp_path / "a", both_phases(), "prompt")
    assert answer.sentence.startswith(
        "At 20 % of the prompt’s full cache (bytes after the cut), snapkv phase=oneshot has the lowest"
        " error, 0.233"
    )
    assert [*answer.ranking["share"]] == pytest.approx([0.2, 0.2])
    assert "% of prompt" in str(answer)
    peak = of_bytes(tmp_path / "b", both_phases(), "peak")
    assert row_of(peak, "snapkv")["how"] == "smallest size here is 40.0 % of the full cache"


def test_mean_bytes_are_relative_to_the_full_cache_of_equal_steps(tmp_path):
    rows = both_phases() + sized(method_rows("exact", 0.5, "", 1.0, params={"row_format": "int8"}), 1, 1)
    answer = of_bytes(tmp_path, rows, "mean", 0.3)
    assert answer.sentence.startswith(
        "At 30 % of the full cache’s bytes on average over the steps, snapkv phase=oneshot is the only"
        " method with a number"
    )
    how = row_of(answer, "exact int8")["how"]
    assert how == "smallest size here is 100.0 % of the full cache on average"


def test_the_caveat_on_phases_appears_only_for_its_byte_measure(tmp_path):
    said = {of: of_bytes(tmp_path / of, both_phases(), of, 0.4).caveats for of in ("peak", "mean", "prompt")}
    peaks = {of: [each for each in found if each.startswith("Bytes are")] for of, found in said.items()}
    assert peaks["mean"] == []  # no comparison at 40 %
    rows = both_phases() + [row | {"mean_bytes": 0.17 * 896 * 256} for row in both_phases()[:6]]
    assert not any("peak" in each for each in of_bytes(tmp_path / "m", rows[6:], "mean", 0.17).caveats)
    (told,) = [
        each for each in of_bytes(tmp_path / "p", both_phases(), "prompt").caveats if "one-shot" in each
    ]
    assert told.startswith("Bytes are counted after the prompt is cut")


def test_shares_of_another_byte_measure_are_not_used(tmp_path):
    """A budget of 20 % at the peak holds less of the prompt, and is not the largest that fits."""
    rows = sized(method_rows("h2o", 1, 100), prompt=0.15, budget_share="0.2")
    rows += sized(method_rows("h2o", 0.5, 140), prompt=0.195)
    asked = {
        of: of_bytes(tmp_path / of, rows, "prompt", meta={"config": {"budget": {"of": of}}})
        for of in ("peak", "prompt")
    }
    assert row_of(asked["peak"], "h2o")["how"] == "budget 140"
    assert row_of(asked["prompt"], "h2o")["how"] == "budget 100"
    earlier = {
        "config": {"budget": {"tokens": [8]}},
        "earlier_runs": [{"config": {"budget": {"of": "prompt"}}}],
    }
    assert row_of(of_bytes(tmp_path / "e", rows, "prompt", meta=earlier), "h2o")["how"] == "budget 100"


def test_floors_of_other_bytes_are_not_mentioned(tmp_path):
    lost = {"method": "snapkv", "given": {}, "share": 0.2, "floor_low": 0.348, "heads": 6, "of_heads": 6}
    meta = {"config": {"budget": {"of": "peak"}}, "unreachable": [lost]}
    rows = sized(method_rows("snapkv", 1, 256, 0.6), prompt=0.3) + sized(method_rows("h2o", 1), prompt=0.2)
    assert row_of(of_bytes(tmp_path / "a", rows, "prompt", meta=meta), "snapkv")["how"].startswith(
        "smallest size here"
    )
    meta["config"]["budget"]["of"] = "prompt"
    found = row_of(of_bytes(tmp_path / "b", rows, "prompt", meta=meta), "snapkv")["how"]
    assert found == "needs 34.8 % of the prompt’s full cache"


def test_bytes_that_a_table_lacks_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(
        ConfigError, match=r"--of prompt: these results lack the column prompt_bytes.* replay"
    ):
        answered(tmp_path / "old", method_rows("h2o", 1), of="prompt")
    rows = sized(method_rows("h2o", 1, n_prefill=0), mean=0.2)
    with pytest.raises(
        ConfigError, match=r"no prompt \(n_prefill is 0\): replay with replay.prefill.*--prefill"
    ):
        of_bytes(tmp_path / "none", rows, "prompt")
    assert of_bytes(tmp_path / "none", rows, "mean").best == "h2o"
    with pytest.raises(ConfigError, match="--of all: write peak, mean or prompt"):
        answered(tmp_path / "word", method_rows("h2o", 1), of="all")


def test_texts_are_not_counted_without_a_comparison(tmp_path):
    answer = answered(tmp_path, method_rows("h2o", 1), share=0.01)
    assert "none of these methods has a number" in answer.sentence
    assert not any("evidence" in each for each in answer.caveats)


def test_the_command_takes_the_byte_measure(tmp_path, capsys):
    write_results(tmp_path, both_phases(), columns=SIZED)
    assert cli.main(["compare", str(tmp_path), "--at", "20%", "--of", "prompt"]) == 0
    assert capsys.readouterr().out.startswith("At 20 % of the prompt’s full cache")


def test_a_page_answers_at_the_shares_and_byte_measure_of_the_run(tmp_path):
    rows = both_phases(budget_share="0.2")
    meta = {"config": {"budget": {"share_of_cache": [0.2], "of": "prompt"}}}
    frame = load(write_results(tmp_path / "a", rows, meta, columns=SIZED))
    assert default_size(frame) == "prompt"
    page = " ".join(str(part) for part in answer_section(frame, summarise(frame)))
    assert "Shares are of the prompt’s full cache (bytes after the cut)." in page
    assert "<b>20 %</b>" in page and "<b>10 %</b>" not in page
    assert "snapkv phase=oneshot</strong> has the lowest error" in page
    frame.attrs["meta"] = {"config": {"budget": {"share_of_cache": [0.2], "of": "mean"}}}
    assert default_size(frame) == "mean"
    frame.attrs["meta"] = {}
    assert default_size(frame) == "prompt"  # every row has a prompt
    assert default_size(frame.assign(prompt_bytes=np.nan)) == "peak"
    frame.attrs["meta"] = {"runs": [meta, {"budget_of": "mean"}]}
    assert default_size(frame) == "peak"  # the two runs do not agree


def test_bytes_are_drawn_against_the_ranking_measure(tmp_path):
    """By the distance h2o is better, by the relative error tova."""
    rows = [
        row | {"cosine_distance_sq": distance}
        for name, factor, distance in (("h2o", 1.5, 0.01), ("tova", 1.0, 0.02))
        for row in method_rows(name, factor)
    ]
    frame = load(write_results(tmp_path / "a", rows, columns=(*COLUMNS, "cosine_distance_sq")))
    points = bytes_points(OneTrace(frame)).set_index("label")
    assert points["loss"].to_dict() == pytest.approx({"h2o": 0.01, "tova": 0.02})
    assert (points.at["h2o", "front_peak_share"], np.isnan(points.at["tova", "front_peak_share"])) == (
        1,
        True,
    )
    older = bytes_points(OneTrace(load(write_results(tmp_path / "b", rows)))).set_index("label")
    assert older["measure"].unique().tolist() == ["rel_err_out_mean"]
    assert older["loss"].idxmin() == "tova"


def test_the_interval_of_an_error_ends_at_zero(tmp_path):
    rows = method_rows("h2o", 1.0) + method_rows("tova", 1.0)
    rows[-1] |= {"rel_err_out_mean": 50.0}  # one layer decides the mean, and its interval reaches below 0
    row = row_of(answered(tmp_path, rows), "tova")
    assert (row["low"], row["high"] > 20) == (0, True)
