"""Paired comparison of two methods on the same heads."""

import math

import numpy as np
import pandas as pd
import pytest
from kvanalysis import load
from kvanalysis.stats.paired import LOWER_RULE, compare, compare_units, lower_everywhere
from kvanalysis.stats.verdict import FAILS, HOLDS, MIXED, UNDECIDED, above, judge, near, of_counts
from test_kvanalysis_fake import fake_row, write_results


def two(tmp_path, first, second, seeds=1):
    """The rows of two methods, an error for each layer."""
    rows = [
        fake_row(method, layer=layer, rel_err=error + 0.01 * seed, seed=seed)
        for method, errors in (("h2o", first), ("tova", second))
        for layer, error in enumerate(errors)
        for seed in range(seeds)
    ]
    frame = load(write_results(tmp_path, rows))
    return [frame[frame["method"] == method] for method in ("h2o", "tova")]


def test_wins_ties_and_losses_are_counted_by_head(tmp_path):
    c = compare(*two(tmp_path, [0.1, 0.2, 0.3001], [0.2, 0.1, 0.3]))
    assert (c.n_units, c.wins, c.ties, c.losses) == (3, 1, 1, 1)
    assert c.difference == pytest.approx((0.1 + 0.2 + 0.3001 - 0.6) / 3)


def test_the_ratio_is_the_geometric_mean(tmp_path):
    c = compare(*two(tmp_path, [0.1, 0.4], [0.2, 0.2]))
    assert c.ratio == pytest.approx(1.0)


def test_the_interval_of_a_difference_is_students_over_layers_and_p_belongs_to_it(tmp_path):
    # Differences -0.1 to -0.5: mean -0.3, standard deviation 0.158, half width 2.776 * 0.158 / sqrt(5).
    first, second = two(tmp_path, [0.1] * 5, [0.2, 0.3, 0.4, 0.5, 0.6])
    c = compare(first, second)
    reach = 2.776445 * np.sqrt(0.025 / 5)
    assert (c.difference, *c.interval) == pytest.approx((-0.3, -0.3 - reach, -0.3 + reach))
    assert c.decided
    # t = 0.3 / 0.0707 = 4.243 with 4 degrees of freedom.
    assert c.p == pytest.approx(0.0132, abs=1e-4)
    assert compare(second, first).interval == pytest.approx((0.3 - reach, 0.3 + reach))
    assert f"[{c.low:+.2g}, {c.high:+.2g}]" in c.text()


def test_an_interval_with_zero_inside_decides_nothing(tmp_path):
    c = compare(*two(tmp_path, [0.2] * 5, [0.1, 0.3, 0.1, 0.3, 0.21]))
    assert not c.decided
    assert c.p > 0.05


def test_four_layers_decide_nothing_with_any_number_of_heads():
    units = pd.MultiIndex.from_product(
        [["t"], ["p0"], range(4), range(3)], names=["trace_id", "prompt", "layer", "kv_head"]
    )
    first = pd.Series(np.linspace(0.1, 0.2, 12), units)
    c = compare_units(first, first + 0.5)
    assert (c.n_units, c.n_blocks, c.wins, c.decided) == (12, 4, 12, False)
    assert math.isnan(c.low) and math.isnan(c.p)
    assert "[too few blocks]" in c.text()


def test_units_without_a_value_are_left_out_of_the_pairs():
    first = pd.Series([0.1, np.nan, 0.3], pd.Index([0, 1, 2], name="layer"))
    second = pd.Series([0.2, 0.2, 0.4, 9.0], pd.Index([0, 1, 2, 3], name="layer"))
    c = compare_units(first, second)
    assert (c.n_units, c.difference) == (2, pytest.approx(-0.1))


BELOW, ABOVE, ASTRIDE, NONE = (-2.0, -1.0), (1.0, 2.0), (-1.0, 1.0), (math.nan, math.nan)


@pytest.mark.parametrize(
    ("intervals", "outcome"),
    [
        ([BELOW], HOLDS),
        ([ABOVE], FAILS),
        ([ASTRIDE], UNDECIDED),
        ([], UNDECIDED),
        ([NONE, NONE], UNDECIDED),
        ([BELOW, NONE, NONE], HOLDS),  # a missing interval does not count as a place
        ([BELOW, BELOW, ASTRIDE], HOLDS),
        ([BELOW, ASTRIDE], UNDECIDED),  # half is not a majority
        ([ABOVE, ABOVE, ASTRIDE], FAILS),
        ([BELOW, BELOW, BELOW, ABOVE], MIXED),
    ],
)
def test_most_places_decide_unless_one_contradicts(intervals, outcome):
    assert judge(intervals) == outcome
    mirrored = [(-high, -low) for low, high in intervals]
    assert above(mirrored) == outcome
    assert above([(low + 5, high + 5) for low, high in mirrored], 5.0) == outcome


def test_an_interval_that_ends_at_the_line_is_not_beyond_it():
    assert judge([(-1.0, 0.0)]) == UNDECIDED
    assert judge([(-1.0, 0.0)], 0.1) == HOLDS


def test_an_exponent_is_near_only_with_its_whole_interval():
    assert near(-1, -1.2, -0.9, 0.25) == HOLDS
    assert near(-1, -0.7, -0.1, 0.25) == FAILS
    assert near(-1, -1.2, -0.7, 0.25) == UNDECIDED  # extends beyond the range
    assert near(-1, -3, 1, 0.25) == UNDECIDED  # contains the exponent, but is too wide
    assert near(-1, *NONE, 0.25) == UNDECIDED


@pytest.mark.parametrize(
    ("agree", "tried", "outcome"), [(3, 3, HOLDS), (0, 3, FAILS), (1, 3, MIXED), (0, 0, UNDECIDED)]
)
def test_results_without_randomness_are_decided_by_counts(agree, tried, outcome):
    assert of_counts(agree, tried) == outcome


def test_lower_everywhere_judges_the_places_that_have_an_interval(tmp_path):
    first, second = two(tmp_path, [0.1, 0.12, 0.1, 0.12, 0.1], [0.31, 0.31, 0.31, 0.31, 0.32])
    few = [rows[rows["layer"] < 4] for rows in (first, second)]
    places = [("64", first, second), ("128", *few), ("256", first[:0], second)]
    verdict = lower_everywhere("a", "b", places)
    assert (verdict.outcome, verdict.how) == (HOLDS, LOWER_RULE.format(places="every budget"))
    assert "128: 0.11 against 0.31, difference -0.2 [too few blocks]" in verdict.numbers
    assert verdict.numbers.endswith("256: no head in common")
    assert lower_everywhere("a", "b", [("64", second, first)]).outcome == FAILS
    assert lower_everywhere("a", "b", places[1:]).outcome == UNDECIDED


def test_only_heads_that_both_have_count_and_seeds_are_averaged(tmp_path):
    c = compare(*two(tmp_path, [0.1, 0.2, 0.3], [0.2, 0.3], seeds=2))
    assert c.n_units == 2
    assert c.first == pytest.approx(0.155)


def test_methods_without_a_common_head_are_not_compared(tmp_path):
    first, second = two(tmp_path, [0.1, 0.2], [0.1, 0.2])
    assert compare(first[first["layer"] == 0], second[second["layer"] == 1]) is None
