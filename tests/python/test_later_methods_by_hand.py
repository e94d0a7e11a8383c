"""The numpy definitions of the methods added later, on examples small enough to work out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from engine_cases_tier2 import layers_of
from reference import budgets, buffered, leverage, output_aware, reads, repeat_scores, window_votes
from reference.common import Head, Rope, attend, exact_out

PRINTED = 5e-5  # expectations here have four decimals


def plain_head(q, k, v=None, P=None, scale=1.0, **more):
    """A head without rotary embedding; the values default to the keys."""
    k = np.array(k, dtype=float)
    return Head([q], k, k if v is None else v, scale, len(k) if P is None else P, **more)


# --- Buffered frame -------------------------------------------------------------------------------


def test_a_buffered_frame_cuts_at_the_prompt_and_after_every_full_buffer():
    head = plain_head(np.zeros((12, 1)), np.zeros((12, 1)), P=5)
    found = buffered.buffered(head, 3, 2, lambda live, T: live[-3:])
    assert [len(live) for live in found.kept] == [3, 4, 3, 4, 3, 4, 3, 4]


def test_steps_of_a_buffer_count_before_the_first_cut_too():
    head = plain_head(np.zeros((8, 1)), np.zeros((8, 1)), P=2)
    found = buffered.buffered(head, 3, 3, lambda live, T: live[-3:])
    assert [len(live) for live in found.kept] == [2, 3, 4, 3, 4, 5, 3]


def test_a_buffer_in_the_budget_reduces_the_tokens_left_by_a_cut():
    (head, *_), *_ = layers_of("smooth")
    found = buffered.rkv(head, 40, window=4, buffer=8, buffer_in_budget=True)
    assert len(found.kept[0]) == 32
    assert max(map(len, found.kept)) < 40


def test_rkv_keeps_the_newest_of_equal_keys():
    keys = [(1, 0), (1, 0), (1, 0), (0, 1)]
    head = plain_head([(0, 0)] * 3 + [(0, 1)], keys)
    live = np.arange(4)
    assert buffered.redundancy(head.k) == pytest.approx([0.3342, 0.2603, 0.2027, 0.2027], abs=PRINTED)
    scores = buffered.rkv_scores(head, live, 4, window=1, kernel=1, blend=0.5)
    assert scores == pytest.approx([-0.0005, 0.0365, 0.0653], abs=PRINTED)
    found = buffered.rkv(head, 2, window=1, kernel=1, **{"lambda": 0.5})
    assert found.kept[0].tolist() == [2, 3]


def test_rkv_zeroes_key_0_for_a_row_without_similar_keys_and_for_every_row_of_first():
    S = np.array([[0, 0.9, 0.2], [0.9, 0, 0.6], [0.2, 0.6, 0]])
    last = [[0, 0, 0.2], [0.9, 0, 0], [0.2, 0, 0]]
    assert buffered.without_one_copy(S, 0.5, "last").tolist() == last
    assert buffered.without_one_copy(S, 0.5, "first")[:, 0].tolist() == [0, 0, 0]
    assert buffered.without_one_copy(S, 0.95, "last")[:, 0].tolist() == [0, 0, 0]
    assert buffered.without_one_copy(S, 0.5, "none").tolist() == S.tolist()


def test_rkv_takes_the_groups_maximum_of_logits_or_its_mean_of_probabilities():
    logits = np.log([[[1.0, 3.0]], [[6.0, 2.0]]])
    assert buffered.importance(logits, 1, "max") == pytest.approx([6 / 9, 3 / 9])
    assert buffered.importance(logits, 1, "sum") == pytest.approx([0.5, 0.5])


def turning_keys():
    """One pair of channels that rotates by a quarter turn per token; un-rotated, every key and query is 1."""
    quarter = Rope(np.array([np.pi / 2]))
    stored = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    return plain_head(stored, stored, rope=quarter)


def test_triattention_expects_the_query_one_token_ahead():
    head = turning_keys()
    stats = buffered.calibrate(head)
    assert stats[0] == pytest.approx(np.ones((1, 1)))
    scores = buffered.tri_scores(head, stats, np.arange(4), 4, offsets=1)
    assert scores[0] == pytest.approx([0, 1, 0, -1])
    assert buffered.triattention(head, 1, offsets=1).kept[0].tolist() == [1]


def test_triattention_scores_stored_keys_as_it_scores_unrotated_ones():
    for trace in ("smooth", "widths"):
        (head, *_), *_ = layers_of(trace)
        stats, live = buffered.calibrate(head), np.arange(1, head.P, 2)
        direct = buffered.tri_scores(head, stats, live, head.P)
        folded = buffered.tri_scores_of_stored_keys(head, stats, live, head.P)
        assert np.abs(direct - folded).max() <= 1e-9 * np.abs(direct).max()


def test_triattention_without_phases_decides_by_lengths():
    (head, *_), *_ = layers_of("smooth")
    _, q_abs_mean, rest = stats = buffered.calibrate(head)
    live = np.arange(head.P)
    found = buffered.tri_scores(head, stats, live, head.P, trig_term=False, norm_term="full")
    kappa, k_rest = buffered.unrotated_pairs(head.k[live], live, head.rope)
    assert found == pytest.approx(q_abs_mean @ np.abs(kappa).T + rest @ k_rest.T)


def test_offsets_double_up_to_the_last():
    assert len(buffered.distances(65536)) == 17
    assert buffered.distances(9).tolist() == [1, 2, 4, 8]


# --- Output-aware ---------------------------------------------------------------------------------


def test_critical_gives_half_to_scores_and_half_to_scores_times_norms():
    S, N = np.array([0.4, 0.3, 0.2, 0.1]), np.array([1, 1, 1, 10])
    kept = output_aware.critical_choice(S, N, np.zeros(4, dtype=bool), 2)
    assert kept.tolist() == [0, 3]


def test_critical_counts_protected_tokens_in_its_first_half():
    S, N = np.array([0.4, 0.3, 0.2, 0.1]), np.array([1, 1, 10, 1])
    kept = output_aware.critical_choice(S, N, np.array([False, False, False, True]), 2)
    assert kept.tolist() == [2, 3]


def test_critical_measures_values_by_the_absolute_sum_behind_the_output_projection():
    o_proj = np.array([[[1.0, -2.0], [0.0, 1.0]]])
    head = plain_head([(0, 0)] * 2, [(1, 0), (1, 1)], o_proj=o_proj)
    assert output_aware.projected_norms(head).tolist() == [3, 2]


def test_caote_is_the_change_of_the_output():
    alpha, v = np.array([0.5, 0.25, 0.25]), np.array([[1.0], [1.0], [-1.0]])
    assert output_aware.caote_changes(alpha, v) == pytest.approx([0.5, 1 / 6, 0.5])
    assert output_aware.caote_changes(4 * alpha, v) == pytest.approx([0.5, 1 / 6, 0.5])
    assert output_aware.caote_changes(np.array([1.0, 0, 0]), v)[0] == np.inf


def test_caote_over_this_steps_probabilities_is_exact_for_every_token():
    (head, *_), *_ = layers_of("g1")
    live, t = np.arange(3, head.P, 5), head.P - 1
    p, out = attend(head, t, live)
    for i, c in enumerate(output_aware.caote_changes(p[0], head.v[live])):
        without = attend(head, t, np.delete(live, i))[1]
        assert c == pytest.approx(np.linalg.norm(without[0] - out[0]), rel=1e-8, abs=1e-12)


def test_tova_with_caote_evicts_the_token_whose_loss_changes_its_row_least():
    (head, *_), *_ = layers_of("g1")
    found = output_aware.tova(head, 20, wrapper={"name": "caote"})
    for t in range(head.P, head.n):
        live = np.append(found.kept[t - head.P], t)
        gone = np.setdiff1d(live, found.kept[t - head.P + 1])
        out = attend(head, t, live)[1]
        change = [np.linalg.norm(attend(head, t, live[live != j])[1] - out) for j in live]
        assert change[np.flatnonzero(live == gone[0])[0]] <= min(change) * (1 + 1e-9)


def test_obc_scores_a_row_of_two_tokens():
    p, logits, v = np.array([0.5, 0.5]), np.ones(2), np.array([[1.0], [3.0]])
    expected = {"obc_value": [0.25, 2.25], "obc_key": [0.25, 0.25], "obc_joint": [0, 4]}
    for score, want in expected.items():
        assert output_aware.obc(score, p, logits, v, p @ v) == pytest.approx(want)


def test_obc_is_summed_over_the_rows_that_see_a_token():
    (head, *_), *_ = layers_of("g1")
    rows = output_aware.prompt_rows(head, 0, "obc_joint")
    t, live = 7, np.arange(8)
    p = attend(head, t, live)[0]
    assert rows[:, t, :8] == pytest.approx(output_aware.decode_row(head, t, live, p, "obc_joint"))
    assert not rows[:, t, 8:].any()


def test_h2o_adds_up_obc_over_the_rows_of_the_prompt_and_of_the_decode():
    head = plain_head(np.ones((3, 1)), np.ones((3, 1)), v=np.array([[1.0], [3.0], [4.0]]), P=2)
    rows = output_aware.prompt_rows(head, 0, "obc_value").sum(axis=1)[0]
    assert rows == pytest.approx([1.25, 2.25])
    found = output_aware.h2o(head, 1, heavy=1, recent=0, score="obc_value")
    assert [kept.tolist() for kept in found.kept] == [[1], [1]]
    assert output_aware.tova(head, 1, score="obc_value").kept[-1].tolist() == [2]


# --- Other windows --------------------------------------------------------------------------------


def test_finch_weighs_a_row_by_the_keys_that_it_sees():
    # x = (1/7, 4/7) over 3 keys and (4/9, 1/9) over 4: weighted by 3 and 4, 2.21 against 2.16; summed, .59
    # against .68.
    keys = np.log([[2.0], [0.5], [1], [1], [1]])
    head = plain_head([[1.0], [1], [-1], [1], [1]], keys, P=4)
    assert window_votes.finch_kept(head, 3, window=2).tolist() == [0, 2, 3]


def test_finch_gives_every_chunk_the_same_share():
    head = plain_head(np.ones((6, 1)), np.log([[9.0], [8], [7], [6], [1], [1]]), P=5)
    for B, chunks, kept in ((3, 1, [0, 1, 4]), (3, 2, [0, 2, 4]), (4, 2, [0, 2, 3, 4]), (1, 2, [4])):
        assert window_votes.finch_kept(head, B, window=1, chunks=chunks).tolist() == kept


def test_laq_keeps_tokens_attended_by_the_next_rows_and_does_not_measure_these():
    q = np.array([[1.0]] * 4 + [[-1.0]] * 2 + [[1.0]])
    head = plain_head(q, np.log([[4.0], [3], [2], [1], [1], [1], [1]]), P=4)
    found = window_votes.laq(head, 2, lookahead=2, kernel=1)
    assert found.kept[0].tolist() == [2, 3]
    assert found.out.shape == (1, 1, 1)


# --- Leverage -------------------------------------------------------------------------------------


def test_leverage_of_two_opposite_keys_and_a_zero_one():
    lev = leverage.leverage(np.array([(1.0, 0), (-1, 0), (0, 0)]))
    assert lev == pytest.approx([1 / 2.01, 1 / 2.01, 0])


def test_box_muller_gives_the_cosine_before_the_sine():
    normal = leverage.box_muller([np.exp(-0.5), 0.125, 0.0, 0.25], 4)
    root = np.sqrt(0.5)
    assert normal == pytest.approx([root, root, 0, np.sqrt(2 * 53 * np.log(2))], abs=1e-12)
    assert leverage.box_muller([np.exp(-0.5), 0.125, np.exp(-0.5), 0.0], 3) == pytest.approx([root, root, 1])


def test_compactor_cuts_its_attention_into_chunks_from_the_first_token_after_the_sinks():
    q = np.ones((5, 1))
    head = plain_head(q, np.zeros((5, 1)), v=np.array([[9.0], [1], [2], [3], [4]]))
    # Tokens 1..4 in chunks of 3: each gets 1 from its chunk; token 4 is alone. Times ||v||, mean of three.
    assert leverage.received(head, 1, 5, 3) == pytest.approx([1, 2, 3, 7 / 3])


def test_capkv_prefers_values_that_others_do_not_span():
    v = np.array([(1.0, 0), (1, 0), (1, 0), (0, 1)])
    head = plain_head(np.ones((4, 2)), np.ones((4, 2)), v=v)
    s = leverage.capkv_scores(head, sinks=0, eps=0.0)
    assert s == pytest.approx([1 / 4, 1 / 4, 1 / 4, 1 / 2])


def test_a_filter_points_to_where_most_queries_do():
    q = np.array([(-3.0, 0.1), (-2, 0), (1, 0)])
    direction = leverage.filter_direction(plain_head(q, np.ones((3, 2))))
    assert direction[0] < -0.99
    assert leverage.filter_direction(plain_head(-q, np.ones((3, 2))))[0] > 0.99


def test_streamed_qfilters_drop_the_key_least_along_the_filter_outside_the_recent_ones():
    q, k = np.ones((6, 1)), np.array([[5.0], [1], [4], [2], [0], [3]])
    found = leverage.qfilters(plain_head(q, k, P=4), 3, phase="stream", recent=1)
    assert [kept.tolist() for kept in found.kept] == [[0, 2, 3], [0, 2, 4], [0, 2, 5]]


# --- Reads ----------------------------------------------------------------------------------------


def test_rocketkv_scores_pages_by_few_channels_and_cuts_a_page_in_order():
    q, keys = (
        np.array([[2.0, 1, 0, 0]]),
        np.array([(1.0, 0, 0, 0), (0, 5, 0, 0), (-1, 0, 0, 0), (2, 0, 0, 0)]),
    )
    tokens, channels, s = reads.rocket_stage2(q, keys, 4, 2)
    assert channels.tolist() == [0, 1]
    assert s.tolist() == [[7, 4]]
    assert tokens.tolist() == [0, 1]
    assert reads.rocket_stage2(q, keys, 4, 3)[0].tolist() == [0, 1, 2]


def test_rocketkv_splits_its_ratio_over_both_stages():
    assert reads.rocket_capacity(n=1100, P=1024, B=128) == int(1024 / 8**0.38)
    assert reads.rocket_capacity(n=2000, P=1024, B=128) == 1024
    assert [reads.rocket_page(c) for c in (1, 1.5, 4, 9, 10)] == [1, 1, 2, 3, 4]


def test_magicpig_weighs_a_token_by_the_chance_that_two_tables_agree():
    u = reads.collision_probability(np.array([1.0, 0]), np.array([[0.0, 1]]), 1, 2)
    assert u == pytest.approx([0.25])
    assert 1 / u[0] == pytest.approx(4)


def test_magicpig_reads_a_token_only_if_two_tables_agree():
    keys = np.array([(1.0, 1), (1, -1), (-1, -1), (1, 1)])
    head = plain_head(keys, keys, P=3)
    middle, phi = np.arange(3), np.eye(2)
    _, (sampled,), _ = reads.magicpig_row(head, 3, middle, np.zeros(2), phi, K=1, L=2)
    assert sampled.tolist() == [0]
    _, (sampled,), _ = reads.magicpig_row(head, 3, middle, np.zeros(2), phi, K=1, L=2, min_tables=1)
    assert sampled.tolist() == [0, 1]


def test_lloyd_starts_at_evenly_spaced_keys_and_leaves_an_empty_cluster_where_it_is():
    points = np.array([[0.0], [1], [2], [9], [10], [11]])
    assert reads.lloyd(points, 2, iterations=1).ravel().tolist() == [1, 10]
    alike = np.array([[1.0], [1], [1], [5]])
    assert reads.lloyd(alike, 2, iterations=1).ravel().tolist() == [2, 1]
    assert reads.lloyd(alike, 2).ravel().tolist() == [5, 1]


def test_pqcache_with_a_centroid_for_every_key_reads_the_best_keys():
    (head, *_), *_ = layers_of("odd")
    sinks, recent = 2, 5
    assert head.P - sinks == 32
    middle = np.arange(sinks, head.P + 1 - recent)
    logits = np.einsum("gd,md->gm", head.q[:, head.P], head.k[middle]) / np.sqrt(head.d)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    order = middle[np.argsort(-(e / e.sum(axis=1, keepdims=True)).sum(axis=0), kind="stable")]
    held = np.append(np.arange(sinks), np.arange(head.P + 1 - recent, head.P + 1))
    for B in range(len(held), head.P):
        found = reads.pqcache(head, B, bits=5, sinks=sinks, recent=recent)
        assert [len(s[0]) for s in found.tokens] == [B] * (head.n - head.P)
        assert set(found.tokens[0][0]) == {*held, *order[: B - len(held)]}


def test_labels_lie_on_levels_between_the_smallest_and_the_largest_channel():
    x = np.array([[0.0, 0.4, 3.0], [2, 2, 2]])
    assert reads.coded(x, 2).tolist() == [[0, 0, 3], [2, 2, 2]]
    assert reads.coded(x, 16).tolist() == x.tolist()


def test_double_sparsity_ranks_channels_by_products_of_a_row_with_its_own_key():
    q, k = np.array([(1.0, 2, 3), (1, 2, -3)]), np.array([(4.0, 1, 1), (-4, 1, 1)])
    assert reads.ranked_channels([(q, k)], 2).tolist() == [0, 2]


@pytest.mark.parametrize("trace", ["smooth", "widths"])
def test_a_read_budget_that_holds_everything_gives_exact_attention(trace):
    for head in layers_of(trace)[0]:
        n, exact = head.n, exact_out(head)
        for found in (
            reads.pqcache(head, n, sinks=2),
            reads.rocketkv(head, 2 * n, window=8),
            reads.doublesparsity(head, n, group_factor=4, dense_layers=()),
            reads.magicpig(head, K=2, L=3, local=head.P, dense_layers=()),
            reads.magicpig(head, K=2, L=3, dense_layers=(head.layer,)),
        ):
            assert found.out == pytest.approx(exact)
            assert [len(s) for s in found.tokens[-1]] == [n] * head.G


def test_reads_count_their_index_and_each_token_once_or_once_per_head():
    (head, *_), *_ = layers_of("widths")
    row, rows, first = head.d + head.dv, head.n - head.P, head.P + 1
    pq = reads.pqcache(head, 20, bits=3, sinks=2)
    assert pq.read == [2 * 8 * head.d // 2 + 20 * row] * rows
    assert pq.extras["code_bytes"][0] == (first - 2 - 10) * 2 * 3 / 8
    ds = reads.doublesparsity(head, 20, dense_layers=())
    assert ds.read[0] == 2 * head.G * first + head.G * 20 * row
    assert ds.extras["label_bytes"][0] == head.G * first * (head.d // 8) * 4 / 8
    rocket = reads.rocketkv(head, 8, window=4, stage1=10)
    page = reads.rocket_page(rocket.extras["ratio"])
    channels = int(head.d * page / rocket.extras["ratio"])
    assert rocket.read[0] == -(-11 // page) * channels + 4 * row
    assert rocket.stored == (10 + rows) * row + 2 * head.d * -(-(10 + rows) // page)
    pig = reads.magicpig(head, K=2, L=9, sinks=2, local=6, dense_layers=())
    assert pig.extras["code_bytes"] == 2 * 9 * (head.P - 8)
    assert pig.read[0] == sum(len(s) for s in pig.tokens[0]) * row


# --- Repeat pass ----------------------------------------------------------------------------------


def test_a_repeat_row_shares_its_attention_with_itself():
    head = plain_head([[0.0], [0]], [[np.log(2)], [0]])
    repeat = repeat_scores.Repeat(np.ones((1, 1, 1)), np.zeros((1, 1)), (0, 1), (0, 2))
    assert repeat_scores.kvzip_scores(head, repeat, sinks=0) == pytest.approx([0.5, 0.25])


def test_kvzip_plus_weighs_by_the_projected_value_per_input():
    o_proj = np.array([[[3.0, 4.0]]])
    head = plain_head([[0.0], [0]], [[np.log(2)], [0]], v=np.array([[1.0], [2]]), o_proj=o_proj)
    repeat = repeat_scores.Repeat(np.ones((1, 1, 1)), np.zeros((1, 1)), (0, 1), (0, 2), np.array([10.0]))
    assert repeat_scores.kvzip_scores(head, repeat, 0, plus=True) == pytest.approx([0.25, 0.25])


def test_heads_keep_everything_in_the_order_of_their_share_while_the_total_lasts():
    assert repeat_scores.by_head([0.2, 0.9, 0.5], P=10, total=22, least=2).tolist() == [2, 10, 10]
    assert repeat_scores.by_head([0.2, 0.9, 0.5], P=10, total=21, least=2).tolist() == [2, 10, 2]


# --- Budgets --------------------------------------------------------------------------------------


def test_lu_kv_gives_the_next_token_to_the_steepest_hull():
    slopes = [budgets.hull_slopes(np.array(u)) for u in ((0, 0.5, 0.6, 0.6), (0, 0.1, 0.7, 0.7))]
    assert slopes[0] == pytest.approx([0.5, 0.1, 0])
    assert slopes[1] == pytest.approx([0.35, 0.35, 0])
    assert budgets.greedy_shares(slopes, 3, 0).tolist() == [1, 2]
    assert budgets.greedy_shares(slopes, 3, 1).tolist() == [1, 2]
    assert budgets.greedy_shares([np.ones(2), np.ones(2)], 3, 0).tolist() == [2, 1]


def test_budgets_of_other_prompts_are_averaged_as_shares_of_a_prompt(monkeypatch):
    # Prompts of four and two tokens: the heads get 3 and 1 of the longer one's 4, 1 and 1 of the shorter
    # one's 2.
    gains = {"a": [4, 3, 3, 0], "b": [1, 1, 1, 1], "c": [1, 0], "d": [1, 0]}
    monkeypatch.setattr(budgets, "future_mass", lambda head: np.array(gains[head.name], float))
    long, short = ([SimpleNamespace(name=n, P=p) for n in names] for names, p in (("ab", 4), ("cd", 2)))
    free = [(long, np.zeros((2, 4)), np.zeros(4, bool)), (short, np.zeros((2, 2)), np.zeros(2, bool))]
    assert budgets.lu_kv_learned(free[:1], 2, 4, 1).tolist() == [3, 1]
    assert budgets.lu_kv_learned(free[1:], 2, 4, 1).tolist() == [2, 2]
    # Means of 2.5 and 1.5 of 4 tokens: remainders tie, and the lower head wins.
    assert budgets.lu_kv_learned(free, 2, 4, 1).tolist() == [3, 1]


def test_heads_that_do_not_stream_share_the_remaining_tokens():
    # 4 heads of 10 tokens; two heads hold 3 + 4 each: 26 tokens are left, 13 for each other head.
    tokens, streams = budgets.duo_budgets([0.3, 0.1, 0.2, 0.9], 10, sinks=3, recent=4)
    assert (tokens.tolist(), streams.tolist()) == ([13, 7, 7, 13], [False, True, True, False])
    tokens, _ = budgets.duo_budgets([0.3, 0.1, 0.2], 10, stream_frac=0.34, sinks=3, recent=4)
    assert tokens.tolist() == [12, 7, 11]


def test_headkv_adds_a_share_of_the_pool_to_an_equal_part():
    # b = 60; 50 per head go to the pool of 100: each head gets 10, plus 75 or 25.
    assert budgets.headkv_budgets([3, 1], 68, 8).tolist() == [93, 43]
    assert budgets.headkv_budgets([3, 1], 68, 8, temp=2).tolist() == [108, 28]


def test_largest_remainders_get_the_rest_of_rounding():
    assert budgets.largest_remainder(np.array([1.5, 1.5, 2.0]), 5).tolist() == [2, 1, 2]


def test_half_of_the_heads_stream_and_a_tie_goes_to_the_lower():
    assert budgets.streaming_heads(np.array([0.3, 0.1, 0.1, 0.2]), 0.25).tolist() == [
        False,
        True,
        False,
        False,
    ]
    assert budgets.streaming_heads(np.arange(9.0), 0.5).sum() == 4


def test_duo_mass_is_the_attention_to_the_middle():
    x = plain_head(np.zeros((5, 1)), np.zeros((5, 1)))
    # Uniform rows 3 and 4 give 1/4 to token 1, and 2/5 to tokens 1 and 2.
    assert budgets.duo_mass(x, sinks=1, recent=2) == pytest.approx((1 / 4 + 2 / 5) / 2)
