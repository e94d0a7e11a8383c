"""Means, intervals and the summary table, with small numbers checked by hand."""

import numpy as np
import pandas as pd
import pytest
from kvanalysis import load
from kvanalysis.stats.intervals import (
    UNIT,
    block_errors,
    blocks_of,
    holm,
    mean_interval,
    mean_intervals,
    paired_difference,
    two_sided_p,
    unit_means,
)
from kvanalysis.stats.summary import summarise
from scipy import stats
from test_kvanalysis_fake import TRACE, failed_row, fake_row, write_results


def summary(folder, rows, **options):
    return summarise(load(write_results(folder, rows)), **options)


def only(folder, rows):
    table = summary(folder, rows)
    assert len(table) == 1
    return table.iloc[0]


def test_seeds_are_averaged_within_a_head_before_heads_are(tmp_path):
    # Head 0 has seeds 0.1 and 0.3, head 1 one seed 0.6: (0.2 + 0.6) / 2, where the plain mean is 1/3.
    rows = [fake_row(seed=s, kv_head=h, rel_err=e) for s, h, e in ((0, 0, 0.1), (1, 0, 0.3), (0, 1, 0.6))]
    row = only(tmp_path, rows)
    assert row["rel_err_out_mean"] == pytest.approx(0.4)
    assert (row["n_rows"], row["n_units"], row["n_seeds"]) == (3, 2, 2)


def test_a_unit_is_one_prompt_layer_and_kv_head(tmp_path):
    places = [("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1)]
    rows = [fake_row(prompt=p, layer=layer, kv_head=h) for p, layer, h in places]
    assert len(unit_means(load(write_results(tmp_path, rows)), ["rel_err_out_mean"])) == len(places)


def over_layers(*layers):
    """A Series over units, from one tuple of heads' values per layer."""
    units = [("t", "p0", i, h) for i, heads in enumerate(layers) for h in range(len(heads))]
    values = [value for heads in layers for value in heads]
    return pd.Series(values, pd.MultiIndex.from_tuples(units, names=UNIT), dtype=float)


# Mean 3, standard deviation sqrt(2.5): standard error sqrt(0.5); t with 4 degrees of freedom is 2.776.
FIVE = (1.0, 2.0, 3.0, 4.0, 5.0)
FIVE_REACH = 2.776445 * np.sqrt(0.5)


def test_the_interval_of_five_layers_is_students():
    expected = (3, 3 - FIVE_REACH, 3 + FIVE_REACH)
    assert mean_interval(over_layers(*([value] for value in FIVE))) == pytest.approx(expected)
    assert mean_interval(FIVE) == pytest.approx(expected)  # each value without an index is a block


def test_heads_of_one_layer_count_once():
    three_equal_heads = over_layers(*([value] * 3 for value in FIVE))
    assert mean_interval(three_equal_heads) == pytest.approx((3, 3 - FIVE_REACH, 3 + FIVE_REACH))
    # Differences only inside layers leave the layers' means equal: the interval has width 0.
    inside = over_layers(*([1.0, 5.0] for _ in FIVE))
    assert mean_interval(inside) == pytest.approx((3, 3, 3))


def test_layers_of_another_text_or_trace_are_separate_blocks():
    index = pd.MultiIndex.from_tuples(
        [(t, p, layer, h) for t in "ab" for p in ("p0", "p1") for layer in (0, 7) for h in (0, 1)], names=UNIT
    )
    assert blocks_of(index).tolist() == np.repeat(np.arange(8), 2).tolist()
    assert blocks_of(pd.RangeIndex(3)).tolist() == [0, 1, 2]


def test_a_larger_layer_weighs_as_its_heads_and_costs_degrees_of_freedom():
    # Sizes 2, 1, 1, 1, 1 with values 3, 3 | 1 | 2 | 4 | 5: mean 3, sums of deviations 0, -2, -1, 1, 2.
    values = over_layers([3, 3], [1], [2], [4], [5])
    _, [error], freedom = block_errors(values.to_numpy()[:, None], blocks_of(values.index))
    assert error == pytest.approx(np.sqrt(5 / 4 * (4 + 1 + 1 + 4)) / 6)
    # Sum of n² is 8, sum of n⁴ is 20: the layers count as 64/20 = 3.2 equal ones.
    assert freedom == pytest.approx(2.2)
    mean, low, high = mean_interval(values)
    assert (high - mean) / error == pytest.approx(stats.t.ppf(0.975, 2.2))
    assert mean == pytest.approx(3)
    assert mean - low == pytest.approx(high - mean)


def test_below_five_layers_there_is_a_mean_and_no_interval_however_many_heads_they_have():
    mean, low, high = mean_interval(over_layers(*([0.4, 0.5, 0.6] for _ in range(4))))
    assert mean == pytest.approx(0.5)
    assert np.isnan([low, high]).all()
    assert np.isfinite(mean_interval(over_layers(*([0.4, 0.5, 0.6] for _ in range(5))))).all()
    assert np.isnan(mean_interval([])).all()


def test_many_columns_have_the_intervals_that_each_has_alone():
    values = np.random.default_rng(3).normal(size=(12, 4))
    blocks = np.repeat(np.arange(6), 2)
    together = np.transpose(mean_intervals(values, blocks))
    assert together == pytest.approx(np.array([mean_interval(column, blocks) for column in values.T]))


def test_the_probability_of_a_mean_is_that_of_the_interval_that_ends_at_zero():
    mean, _, high = mean_interval(FIVE)
    error = (high - mean) / 2.776445
    assert two_sided_p(high - mean, error, 4) == pytest.approx(0.05, abs=1e-6)
    assert two_sided_p(-3.0, error, 4) == pytest.approx(stats.ttest_1samp(FIVE, 0).pvalue)
    assert (two_sided_p(0.0, 0.0, 4), two_sided_p(0.1, 0.0, 4)) == (1, 0)
    assert np.isnan(two_sided_p(1.0, np.nan, np.nan))


def test_holm_multiplies_by_the_remaining_count_and_is_monotone():
    # Ordered 0.01, 0.03, 0.04: times 3, 2 and 1 gives 0.03, 0.06 and 0.04, which rises to the 0.06 before it.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, np.nan, 0.04, 0.03]) == pytest.approx([0.03, np.nan, 0.06, 0.06], nan_ok=True)
    assert holm([0.6, 0.7]) == pytest.approx([1, 1])
    assert len(holm([])) == 0


def test_a_paired_difference_uses_only_the_units_that_both_have():
    first = over_layers(*([1.0] for _ in range(6)))
    second = over_layers(*([1.0 + value] for value in FIVE))
    assert paired_difference(first, second) == pytest.approx((3, 3 - FIVE_REACH, 3 + FIVE_REACH))


def test_a_failed_cell_is_counted_and_never_averaged(tmp_path):
    rows = [fake_row(kv_head=0, rel_err=0.2), fake_row(kv_head=1, rel_err=0.4), failed_row(kv_head=2)]
    # A failed cell may still contain numbers.
    rows[2]["rel_err_out_mean"] = 100
    row = only(tmp_path, rows)
    assert row["rel_err_out_mean"] == pytest.approx(0.3)
    assert (row["n_rows"], row["n_cells"]) == (2, 3)
    assert row["notes"] == "1 of 3 cells have no result"


def test_a_method_that_failed_everywhere_keeps_its_row_without_numbers(tmp_path):
    row = only(tmp_path, [failed_row(), failed_row(kv_head=1)])
    assert np.isnan(row["rel_err_out_mean"])
    assert (row["n_rows"], row["n_cells"], row["n_units"]) == (0, 2, 0)


def test_a_measure_that_does_not_apply_stays_empty_without_touching_the_others(tmp_path):
    row = only(tmp_path, [fake_row(kv_head=h, kept_mass_mean="", rel_err=0.2) for h in range(2)])
    assert np.isnan(row["kept_mass_mean"])
    assert row["rel_err_out_mean"] == pytest.approx(0.2)
    assert row["n_rows"] == 2


def test_methods_without_a_budget_are_a_separate_group(tmp_path):
    table = summary(tmp_path, [fake_row("exact", budget=""), fake_row("h2o", budget=64)])
    assert table["budget_tokens"].isna().tolist() == [True, False]


def test_the_ratio_of_bytes_is_total_over_full(tmp_path):
    rows = [fake_row(kv_head=h, total_bytes=b, full_bytes=1000) for h, b in ((0, 100), (1, 300))]
    assert only(tmp_path, rows)["bytes_ratio"] == pytest.approx(0.2)


def test_traces_are_never_pooled(tmp_path):
    table = summary(tmp_path, [fake_row(trace_id="a", rel_err=0.1), fake_row(trace_id="b", rel_err=0.3)])
    assert list(table["rel_err_out_mean"]) == [0.1, 0.3]


def test_the_table_by_layer_has_a_row_per_layer(tmp_path):
    rows = [fake_row(layer=layer, rel_err=e) for layer, e in ((0, 0.1), (7, 0.3))]
    table = summary(tmp_path, rows, by=("layer",))
    assert list(zip(table["layer"], table["rel_err_out_mean"], strict=True)) == [(0, 0.1), (7, 0.3)]


def test_error_that_rises_with_the_budget_is_noted_with_its_paired_interval(tmp_path):
    rises = [0.1 * value for value in FIVE]
    rows = [
        fake_row(budget=b, layer=layer, rel_err=0.2 + (b == 128) * rise)
        for b in (64, 128)
        for layer, rise in enumerate(rises)
    ]
    assert list(summary(tmp_path, rows)["notes"]) == ["", "error rises by 0.3 [+0.1, +0.5] from budget 64"]


def test_falling_error_is_not_noted(tmp_path):
    rows = [fake_row(budget=b, kv_head=h, rel_err=16 / b) for b in (64, 128) for h in range(2)]
    assert list(summary(tmp_path, rows)["notes"]) == ["", ""]


def noted(folder, notes):
    """{(label, budget): notes} of window and h2o at two budgets, with these notes in results.meta.json."""
    places = [(name, b, head) for name in ("window", "h2o") for b in (64, 32) for head in (0, 1)]
    rows = [fake_row(name, budget=b, kv_head=head) for name, b, head in places]
    table = summarise(load(write_results(folder, rows, {"notes": notes})))
    keys = zip(table["label"], table["budget_tokens"], strict=True)
    return {key: note for key, note in zip(keys, table["notes"], strict=True) if note}


def a_note(**changes):
    instance = {"method": "h2o", "given": {}, "label": "h2o", "brief": "evicted nothing"}
    text = "h2o at budget 32, in 2 cells: evicted nothing"
    note = {"kind": "nothing_evicted", "instances": [instance], "budgets": [32], "traces": [TRACE]}
    return note | {"cells": 2, "heads": 2, "text": text} | changes


def test_the_engines_notes_on_an_instance_are_in_its_rows(tmp_path):
    assert noted(tmp_path, [a_note()]) == {("h2o", 32): "evicted nothing"}


def test_notes_of_other_traces_instances_or_the_whole_table_are_in_no_row(tmp_path):
    other = {"method": "h2o", "given": {"sinks": 4}, "label": "h2o sinks=4", "brief": "evicted nothing"}
    notes = [a_note(traces=["other"]), a_note(instances=[other]), a_note(instances=[], budgets=[])]
    assert noted(tmp_path, notes) == {}


def test_notes_of_each_of_several_sources_are_not_taken_for_all_of_them(tmp_path):
    places = [write_results(tmp_path / str(h), [fake_row(kv_head=h)], {"notes": [a_note()]}) for h in (0, 1)]
    assert list(summarise(load(places))["notes"]) == [""]


def test_a_method_that_keeps_every_token_under_a_small_budget_holds_the_full_cache(tmp_path):
    table = summary(tmp_path, [fake_row("quest", peak_kept_tokens=1024, n_evictions=0), fake_row("h2o")])
    assert dict(zip(table["label"], table["full_cache"], strict=True)) == {"h2o": False, "quest": True}
    assert list(table["notes"]) == ["", ""]


def test_the_summary_has_the_interval_over_layers_and_none_for_four(tmp_path):
    rows = [fake_row(layer=layer, rel_err=e) for layer, e in enumerate(FIVE)]
    row = only(tmp_path / "five", rows)
    assert (row["rel_err_low"], row["rel_err_high"]) == pytest.approx((3 - FIVE_REACH, 3 + FIVE_REACH))
    assert np.isnan(only(tmp_path / "four", rows[:4])["rel_err_low"])
