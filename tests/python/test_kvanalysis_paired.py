"""Paired comparison of two methods on the same heads."""

import math

import pytest
from kvanalysis import load
from kvanalysis.stats.paired import compare
from test_kvanalysis_fake import fake_row, write_results


def two(tmp_path, first, second, seeds=1):
    rows = [
        fake_row(method, kv_head=head, rel_err=error + 0.01 * seed, seed=seed)
        for method, errors in (("h2o", first), ("tova", second))
        for head, error in enumerate(errors)
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


def test_an_interval_on_one_side_of_zero_decides(tmp_path):
    c = compare(*two(tmp_path, [0.1, 0.11, 0.12], [0.3, 0.31, 0.32]))
    assert c.first_is_lower and not c.second_is_lower
    assert compare(*reversed(two(tmp_path, [0.1, 0.11], [0.3, 0.31]))).second_is_lower


def test_one_head_decides_nothing(tmp_path):
    c = compare(*two(tmp_path, [0.1], [0.3]))
    assert not c.first_is_lower and not c.second_is_lower and math.isnan(c.low)


def test_only_heads_that_both_have_count_and_seeds_are_averaged(tmp_path):
    c = compare(*two(tmp_path, [0.1, 0.2, 0.3], [0.2, 0.3], seeds=2))
    assert c.n_units == 2
    assert c.first == pytest.approx(0.155)


def test_methods_without_a_common_head_are_not_compared(tmp_path):
    first, second = two(tmp_path, [0.1, 0.2], [0.1, 0.2])
    assert compare(first[first["kv_head"] == 0], second[second["kv_head"] == 1]) is None
