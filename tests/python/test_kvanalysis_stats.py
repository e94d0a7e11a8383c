"""Means, intervals and the summary table, with numbers small enough to check by hand."""

import numpy as np
import pandas as pd
import pytest
from kvanalysis import load
from kvanalysis.stats.intervals import bootstrap_means, mean_interval, paired_difference, unit_means
from kvanalysis.stats.summary import summarise
from test_kvanalysis_fake import TRACE, failed_row, fake_row, write_results

# Quantiles interpolate between two of the 2000 draws: the share beyond them is off by one draw at most.
TAIL_TOLERANCE = 1 / 2000


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


def test_the_interval_of_two_heads_spans_both_because_a_quarter_of_the_draws_repeats_one():
    assert mean_interval([1.0, 3.0]) == (2.0, 1.0, 3.0)


def test_the_interval_cuts_two_and_a_half_percent_on_either_side():
    values = np.random.default_rng(3).normal(size=50)
    means = bootstrap_means(values)
    _, low, high = mean_interval(values)
    assert (means < low).mean() == pytest.approx(0.025, abs=TAIL_TOLERANCE)
    assert (means > high).mean() == pytest.approx(0.025, abs=TAIL_TOLERANCE)
    # The spread of the mean of n values is sd / sqrt(n); 1.96 of it on either side.
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / np.sqrt(50), rel=0.1)


def test_the_bootstrap_has_2000_resamples_and_gives_the_same_numbers_again():
    first, second = bootstrap_means([1.0, 2.0, 4.0]), bootstrap_means([1.0, 2.0, 4.0])
    assert len(first) == 2000
    assert (first == second).all()
    assert (first != bootstrap_means([1.0, 2.0, 4.0], seed=1)).any()


def test_working_in_blocks_gives_means_of_the_same_distribution(monkeypatch):
    monkeypatch.setattr("kvanalysis.stats.intervals.BLOCK_VALUES", 10)
    means = bootstrap_means([0.0, 1.0])
    assert len(means) == 2000
    assert (means == 0).mean() == pytest.approx(0.25, abs=3 * np.sqrt(0.25 * 0.75 / 2000))


def test_one_head_has_a_mean_and_no_interval():
    mean, low, high = mean_interval([0.5])
    assert mean == 0.5
    assert np.isnan(low)
    assert np.isnan(high)


def test_a_paired_difference_uses_only_the_units_that_both_have():
    first, second = pd.Series({"a": 1.0, "b": 2.0, "c": 9.0}), pd.Series({"a": 2.0, "b": 5.0})
    assert paired_difference(first, second) == (2.0, 1.0, 3.0)


def test_a_failed_cell_is_counted_and_never_averaged(tmp_path):
    rows = [fake_row(kv_head=0, rel_err=0.2), fake_row(kv_head=1, rel_err=0.4), failed_row(kv_head=2)]
    # A failed cell may have left numbers behind.
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


def test_methods_without_a_budget_are_a_group_of_their_own(tmp_path):
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
    errors = {64: (0.1, 0.3), 128: (0.2, 0.6)}
    rows = [
        fake_row(budget=b, kv_head=h, rel_err=e) for b, pair in errors.items() for h, e in enumerate(pair)
    ]
    assert list(summary(tmp_path, rows)["notes"]) == ["", "error rises by 0.2 [+0.1, +0.3] from budget 64"]


def test_falling_error_is_not_noted(tmp_path):
    rows = [fake_row(budget=b, kv_head=h, rel_err=16 / b) for b in (64, 128) for h in range(2)]
    assert list(summary(tmp_path, rows)["notes"]) == ["", ""]


def noted(folder, notes):
    """{(label, budget): notes} of window and h2o at two budgets, where results.meta.json holds these."""
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


def test_what_the_engine_notes_of_an_instance_stands_in_its_row_at_its_budgets(tmp_path):
    assert noted(tmp_path, [a_note()]) == {("h2o", 32): "evicted nothing"}


def test_notes_of_another_trace_another_instance_or_the_whole_table_stand_in_no_row(tmp_path):
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


def test_the_settings_of_the_bootstrap_are_written_down(tmp_path):
    row = only(tmp_path, [fake_row()])
    assert (row["n_resamples"], row["bootstrap_seed"]) == (2000, 0)
