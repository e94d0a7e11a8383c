"""The numpy definitions of merging on examples small enough to work out by hand."""

import math

import numpy as np
import pytest
from engine_cases_tier2 import layers_of
from reference import output_aware
from reference.common import Head, head_uniform
from reference.h2o import h2o
from reference.merging import STRUCTURE, Merging, Rows, attend, chance, merged
from reference.recency import streaming_llm
from reference.snapkv import snapkv

E = math.e
HEAD = Head(np.zeros((1, 8, 2)), np.zeros((8, 2)), np.zeros((8, 1)), 1.0, 8)
BASES = {
    "h2o": (h2o, {}),
    "tova": (output_aware.tova, {}),
    "streaming_llm": (streaming_llm, {"positions": "original"}),
}


def after(merging, rows, victims, kept):
    """Merges the victims into rows; returns the tokens that stay."""
    return merging(HEAD, rows, np.array(victims), np.array(kept)).tolist()


def rows_of(keys, values, **more):
    return Rows.of(keys, np.array(values, dtype=float)[:, None], **more)


def smooth():
    (head, *_), *_ = layers_of("smooth")
    return head


# --- Votes ------------------------------------------------------------------------------------------


def blind(n, P):
    """A head with two query heads to which all keys are equal."""
    return Head(np.zeros((2, n, 2)), np.zeros((n, 2)), np.zeros((n, 1)), 1.0, P)


def test_a_token_receives_the_attention_of_all_prompt_rows_and_query_heads():
    rows = Rows.after_prompt(blind(4, 3))
    assert rows.received == pytest.approx([2 * (1 + 1 / 2 + 1 / 3), 2 * (1 / 2 + 1 / 3), 2 / 3, 0])
    assert rows.seen.tolist() == [3, 2, 1, 0]
    assert rows.last == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0])


def test_later_rows_vote_for_the_tokens_they_attend_to():
    rows = merged(streaming_llm, blind(4, 2), 2, "cam", sinks=1).extras["rows"]
    assert rows.received == pytest.approx(
        [2 * (1 + 1 / 2 + 1 / 3 + 1 / 3), 2 * (1 / 2 + 1 / 3), 4 / 3, 2 / 3]
    )
    assert rows.seen.tolist() == [4, 2, 2, 1]
    assert rows.last == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2 / 3])


def test_a_row_that_stands_for_three_tokens_receives_the_attention_of_three():
    head, live = blind(2, 1), np.arange(2)
    rows = Rows.after_prompt(head)
    rows.num[0] = rows.den[0] = 3
    assert attend(head, rows, 1, live)[0].tolist() == [[0.75, 0.25]] * 2


# --- CaM --------------------------------------------------------------------------------------------


def test_cam_spreads_a_value_evenly_over_the_next_kept_rows_and_leaves_keys_and_weights():
    rows = rows_of(
        np.eye(4), [6, 1, 1, 1], received=[9, 1, 1, 1]
    )  # A over their mean is above 1: probability 1
    assert after(Merging("cam", targets=2), rows, [0], [1, 2, 3]) == [1, 2, 3]
    assert rows.value[1:, 0].tolist() == [4, 4, 1]
    assert np.array_equal(rows.key, np.eye(4))
    assert rows.num.tolist() == rows.den.tolist() == [1, 1, 1, 1]


def test_cam_divides_by_the_available_kept_rows_and_only_uses_later_ones():
    rows = rows_of(np.eye(4), [1, 6, 1, 1], received=[1, 9, 1, 1])
    after(Merging("cam", targets=3), rows, [1], [0, 2, 3])
    assert rows.value[[0, 2, 3], 0].tolist() == [1, 4, 4]
    rows = rows_of(np.eye(3), [1, 1, 6], received=[1, 1, 9])
    after(Merging("cam"), rows, [2], [0, 1])
    assert rows.value[:2, 0].tolist() == [1, 1]


def test_cams_chance_is_the_victims_attention_over_its_targets_mean_between_0_and_1():
    assert chance(1.0, 4.0) == 0.25
    assert chance(5.0, 4.0) == chance(1.0, 0.0) == 1
    assert chance(0.0, 0.0) == chance(0.0, 4.0) == 0


def test_cam_tosses_the_coin_of_the_victims_token():
    u = head_uniform(HEAD, 5, STRUCTURE, 0)
    for share, moved in ((u * 1.01, 6), (u * 0.99, 0)):
        rows = rows_of(np.eye(2), [6, 0], received=[share, 1])
        after(Merging("cam", seed=5), rows, [0], [1])
        assert rows.value[1, 0] == moved


def test_cam_by_the_step_uses_the_last_rows_attention():
    given = {"received": [0, 1, 1], "last": [9, 1, 1]}
    for attention, moved in (("accumulated", 1), ("step", 4)):
        rows = rows_of(np.eye(3), [6, 1, 1], **given)
        after(Merging("cam", attention=attention), rows, [0], [1, 2])
        assert rows.value[1:, 0].tolist() == [moved, moved]


def test_cam_that_keeps_mass_gives_each_target_its_share_of_the_weights():
    rows = rows_of(np.eye(3), [6, 3, 3], received=[9, 1, 1])
    after(Merging("cam", mass="keep"), rows, [0], [1, 2])
    assert rows.num[1:].tolist() == rows.den[1:].tolist() == [1.5, 1.5]
    assert rows.value[1:, 0].tolist() == [4, 4]  # (3 + 6/2) / 1.5


# --- D2O --------------------------------------------------------------------------------------------


def test_d2o_merges_similar_keys_by_exponentials_of_the_cosine():
    rows = rows_of([(1, 0), (0, 3), (2, 0)], [0, 7, 4])
    after(
        Merging("d2o"), rows, [0], [1, 2]
    )  # cosines 0 and 1: token 0 is merged into token 2, whose own weight is e
    assert rows.key[1:].tolist() == [[0, 3], [1.5, 0]]
    assert rows.value[1:, 0].tolist() == [7, 2]


def test_d2o_weighs_a_targets_whole_group_at_once():
    rows = rows_of([(1, 0), (1, 1), (1, 0)], [3, 5, 7])
    after(Merging("d2o", tau=-1.0), rows, [0, 1], [2])
    a, b = E, math.exp(0.5**0.5)
    assert rows.value[2, 0] == pytest.approx((7 * E + 3 * a + 5 * b) / (E + a + b))
    assert rows.key[2].tolist() == pytest.approx([1, b / (E + a + b)])


def test_d2os_threshold_is_the_first_cuts_mean_and_then_halfway_to_each_later_mean():
    merging = Merging("d2o")
    rows = rows_of([(1, 0), (0, 1), (1, 0), (1, 1)], [8, 6, 2, 4])
    after(merging, rows, [0, 1], [2])  # cosines 1 and 0
    assert merging.tau == 0.5
    assert rows.value[2, 0] == 5  # token 1 is dropped
    after(merging, rows, [3], [2])
    assert merging.tau == pytest.approx((0.5 + 0.5**0.5) / 2)
    assert rows.value[2, 0] < 5  # 0.707 is above the threshold


def test_d2os_release_adds_scaled_rows_and_divides_by_their_number():
    rows = rows_of([(1, 1), (2, 0)], [3, 5])
    after(Merging("d2o", release=True), rows, [0], [1])
    s = 0.5**0.5
    assert rows.key[1].tolist() == pytest.approx([(2 + s) / 2, s / 2])
    assert rows.value[1, 0] == pytest.approx((5 + 3 * s) / 2)


def test_d2o_that_keeps_mass_averages_values_by_weight_and_keys_by_its_own_rule():
    rows = rows_of([(1, 0), (1, 1), (1, 0)], [3, 5, 7])
    rows.num[1] = rows.den[1] = 2  # merged before
    after(Merging("d2o", mass="keep", tau=-1.0), rows, [0, 1], [2])
    assert rows.num[2] == rows.den[2] == 4
    assert rows.value[2, 0] == pytest.approx((7 + 3 + 2 * 5) / 4)
    b = math.exp(0.5**0.5)
    assert rows.key[2].tolist() == pytest.approx([1, b / (2 * E + b)])


# --- LOOK-M -----------------------------------------------------------------------------------------


def test_pivot_takes_the_mean_of_the_target_and_of_the_midpoints_to_its_victims():
    rows = rows_of([(1, 0), (3, 0), (0, 1), (5, 0)], [0, 3, 1, 6])
    after(Merging("pivot"), rows, [0, 1], [2, 3])
    assert rows.key[3].tolist() == pytest.approx([(5 + 3 + 4) / 3, 0])
    assert rows.value[2:, 0].tolist() == pytest.approx([1, (6 + 3 + 4.5) / 3])


def test_equally_similar_kept_keys_give_way_to_the_lower_token():
    rows = rows_of([(1, 0), (2, 0), (2, 0)], [0, 4, 4])
    after(Merging("pivot"), rows, [0], [1, 2])
    assert rows.value[1:, 0].tolist() == [3, 4]


def test_victims_are_compared_with_the_row_before_the_cut():
    # After merging token 0, token 2 would point away from token 1, which would then be merged into token 3.
    rows = rows_of([(10, -10), (0, 1), (1, 0.5), (-1, 0.2)], [0, 0, 1, 1])
    after(Merging("pivot"), rows, [0, 1], [2, 3])
    assert rows.value[3, 0] == 1


# --- WeightedKV -------------------------------------------------------------------------------------


def test_weighted_v_mixes_a_value_into_the_next_kept_row_by_average_attention():
    rows = rows_of(np.eye(3), [8, 0, 4], received=[6, 0, 1], seen=[3, 2, 2])  # average attention 2 and 1/2
    after(Merging("weighted_v"), rows, [0], [2])
    assert rows.value[2, 0] == pytest.approx((2 * 8 + 0.5 * 4) / 2.5)
    assert np.array_equal(rows.key, np.eye(3))


def test_weighted_v_uses_the_previous_kept_row_if_there_is_no_next():
    rows = rows_of(np.eye(3), [8, 4, 0], received=[1, 1, 1], seen=[1, 1, 1])
    after(Merging("weighted_v"), rows, [2], [0, 1])
    assert rows.value[:2, 0].tolist() == [8, 2]


def test_weighted_v_takes_victims_in_the_order_of_their_tokens_and_its_target_keeps_its_attention():
    rows = rows_of(np.eye(3), [8, 4, 0], received=[1, 1, 1], seen=[1, 1, 1])
    after(Merging("weighted_v"), rows, [0, 1], [2])
    assert rows.value[2, 0] == 4  # (8 + 0)/2 = 4, then (4 + 4)/2; the other order gives 5


def test_values_without_any_attention_leave_the_row_as_it_is():
    rows = rows_of(np.eye(2), [8, 4])
    after(Merging("weighted_v"), rows, [0], [1])
    assert rows.value[1, 0] == 4


# --- KVMerger ---------------------------------------------------------------------------------------


def test_gaussian_makes_a_row_of_every_run_of_similar_neighbours_at_its_token_of_most_attention():
    keys = [(1, 0), (1, 0), (0, 1), (9, 1), (1, 0), (1, 0.1)]
    rows = rows_of(keys, [1, 3, 5, 7, 2, 4], received=[1, 1, 1, 9, 1, 2])
    assert after(Merging("gaussian"), rows, [0, 1, 2, 4, 5], [3]) == [0, 2, 3, 5]
    assert rows.value[[0, 2, 3], 0].tolist() == [2, 5, 7]  # equal keys have equal weights; token 2 is alone
    g = math.exp(-0.5)  # with one other member, its distance is the mean distance
    assert rows.value[5, 0] == pytest.approx((4 + 2 * g) / (1 + g))
    assert rows.key[5].tolist() == pytest.approx([1, 0.1 / (1 + g)])


def test_gaussian_measures_distances_by_the_mean_over_the_runs_other_members():
    rows = rows_of([(10, 0), (11, 0), (13, 0)], [0, 1, 2], received=[2, 1, 1])
    after(Merging("gaussian"), rows, [0, 1, 2], [])
    g = np.exp(-np.array([0, 1, 9]) / (2 * 2.0**2))  # mean distance of 1 and 3
    assert rows.value[0, 0] == pytest.approx(g @ [0, 1, 2] / g.sum())


def test_gaussian_that_keeps_mass_counts_a_runs_tokens():
    rows = rows_of([(10, 0), (11, 0), (13, 0)], [0, 1, 5], received=[2, 1, 1])
    after(Merging("gaussian", mass="keep"), rows, [0, 1, 2], [])
    assert rows.num[0] == rows.den[0] == 3
    assert rows.value[0, 0] == 2


# --- Over an eviction -------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("merge", ["cam", "weighted_v", "pivot", "d2o"])
def test_a_base_with_room_for_all_merges_nothing(base, merge):
    head, (method, options) = smooth(), BASES[base]
    plain = method(head, head.n, **options)
    found = merged(method, head, head.n, merge, **options)
    assert np.abs(found.out - plain.out).max() < 1e-12


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("mass", ["none", "keep"])
def test_changed_values_change_no_decision(base, mass):
    """CaM and WeightedKV do not change keys; without mass, probabilities do not change either."""
    head, (method, options) = smooth(), BASES[base]
    plain = method(head, 24, **options)
    for merge in ("cam", "weighted_v"):
        found = merged(method, head, 24, merge, options={"mass": mass}, **options)
        if mass == "none" or base == "streaming_llm":
            assert all(np.array_equal(a, b) for a, b in zip(found.kept, plain.kept, strict=True))
        assert np.abs(found.out - plain.out).max() > 1e-3


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("merge", ["d2o", "pivot", "weighted_v"])
def test_equal_keys_that_merge_with_their_mass_lose_nothing(base, merge):
    """All keys are equal: the sum over all tokens equals the sum over the rows that hold their mass."""
    rng = np.random.default_rng(3)
    key = np.tile(rng.normal(size=4), (40, 1))
    head = Head(rng.normal(size=(2, 40, 4)), key, rng.normal(size=(40, 3)), 0.5, 25)
    method, options = BASES[base]
    found = merged(method, head, 9, merge, options={"mass": "keep"}, **options)
    exact = np.cumsum(head.v, axis=0)[25:] / np.arange(26, 41)[:, None]
    assert np.abs(found.out - exact).max() < 1e-12
    assert [w.sum() for w in found.num] == pytest.approx([*range(25, 41)])


def test_a_one_shot_merge_of_equal_keys_with_their_mass_is_exact_for_every_rule_that_takes_all_victims():
    rng = np.random.default_rng(4)
    key = np.tile(rng.normal(size=4), (40, 1))
    head = Head(rng.normal(size=(2, 40, 4)), key, rng.normal(size=(40, 3)), 0.5, 25)
    exact = np.cumsum(head.v, axis=0)[25:] / np.arange(26, 41)[:, None]
    for merge in ("d2o", "pivot", "weighted_v", "gaussian"):
        found = merged(snapkv, head, 9, merge, window=4, options={"mass": "keep"})
        assert np.abs(found.out - exact).max() < 1e-12


def test_gaussian_holds_what_the_base_keeps_and_a_row_for_every_run():
    head = smooth()
    plain, found = snapkv(head, 20, window=8), merged(snapkv, head, 20, "gaussian", window=8)
    assert set(plain.kept[0]) < set(found.kept[0])
    assert len(found.kept[0]) < head.P
    counted = merged(snapkv, head, 20, "gaussian", window=8, options={"mass": "keep"})
    assert counted.num[0].sum() == head.P


def test_later_rows_vote_by_merged_keys():
    """All victims are merged into one kept row and change its key: the next row decides differently."""
    head = smooth()
    plain, found = (output_aware.tova(head, 12), merged(output_aware.tova, head, 12, "pivot"))
    assert any(not np.array_equal(a, b) for a, b in zip(plain.kept, found.kept, strict=True))


def test_each_query_head_merges_by_its_own_attention():
    head = smooth()
    both = merged(h2o, head, 16, "weighted_v", level="query")
    alone = merged(h2o, head.of_query_head(1), 16, "weighted_v")
    assert np.array_equal(both.out[1], alone.out[0])


def test_merged_keys_and_gaussian_streams_are_refused():
    head = smooth()
    with pytest.raises(ValueError, match="positions: original"):
        merged(streaming_llm, head, 16, "pivot")
    with pytest.raises(ValueError, match="phase: oneshot"):
        merged(h2o, head, 16, "gaussian")
    assert merged(streaming_llm, head, 16, "cam").out.shape[1] == head.n - head.P
