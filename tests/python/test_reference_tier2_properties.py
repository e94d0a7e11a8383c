"""Properties of the numpy definitions, independent of the engine: sizes, exact limits, error bounds."""

import numpy as np
import pytest
from engine_cases_tier2 import CASES, layers_of
from reference import row_codes
from reference import tier2_formats as formats
from reference import tier2_frontier as frontier
from reference import tier2_scores as scores
from reference import tier2_select as select
from reference.common import exact_out

CLOSE = 1e-9
SNAP = {"name": "snapkv", "window": 16, "kernel": 5, "pool": "avg"}


def first_head(trace="smooth"):
    return layers_of(trace)[0][0]


def error(head, out):
    exact = exact_out(head)
    return np.linalg.norm(out - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_every_definition_runs_and_gives_finite_outputs(case):
    for results in case.reference(layers_of(case.traces[0]), case.budgets[0]):
        for result in results:
            assert np.isfinite(result.out).all()


FULL = {
    "tova": lambda h, B: select.tova(h, B),
    "tova layer": lambda h, B: select.tova_layer([h], B)[0],
    "knorm": lambda h, B: select.knorm(h, B, phase="stream"),
    "keydiff": lambda h, B: select.keydiff(h, B, block=9),
    "expected_attention": lambda h, B: select.by_score([h], B, "expected_attention")[0],
    "adakv": lambda h, B: select.adakv([h], B)[0],
    "chunkkv": lambda h, B: select.chunkkv([h], B)[0],
    "cake": lambda h, B: select.cake([[h]], B)[0][0],
    "quest": lambda h, B: select.quest(h, B, page=7, dense_layers=()),
    "kernel_halving": lambda h, B: frontier.kernel_halving(h, B),
    "wildcat": lambda h, B: frontier.wildcat(h, B),
    "attention_matching": lambda h, B: frontier.attention_matching(h, B),
    "hybrid": lambda h, B: frontier.hybrid(h, B),
}


@pytest.mark.parametrize("name", FULL)
def test_a_budget_beyond_the_trace_is_exact(name):
    head = first_head()
    assert error(head, FULL[name](head, head.n + 7).out) < CLOSE


def test_adakv_keeps_the_layer_budget_and_every_floor():
    heads = layers_of("g3")[0]
    kept = [r.kept[0] for r in select.adakv(heads, 41, alpha=0.5, scorer="tova")]
    assert sum(map(len, kept)) == 41 * len(heads)
    assert min(map(len, kept)) >= 20


def test_chunkkv_keeps_whole_chunks():
    heads = layers_of("g3")[0]
    kept = select.chunkkv(heads, 50, chunk=10, scorer=SNAP)[0].kept[0]
    assert all(np.isin(np.arange(c, min(c + 10, heads[0].P)), kept).all() for c in kept // 10 * 10)


def test_cake_spends_the_budget_of_all_layers():
    layers = layers_of("g3")
    budgets = select.cake_budgets(layers, 60, w=16)
    assert sum(budgets) == 3 * 44


def test_excess_is_handed_out_from_the_lowest_layer():
    assert select.spread([12, 9, 3, 5], 29, 10) == [10, 10, 4, 5]


def test_rounding_remainders_are_handed_out_from_the_lowest_layer():
    assert select.spread([11, 3, 4, 5], 25, 10) == [10, 5, 5, 5]
    assert select.spread([10, 9, 9], 30, 10) == [10, 10, 10]


def test_a_page_bound_is_no_smaller_than_any_inner_product():
    head = first_head("g3")
    q = head.q[0, -1]
    bounds = select.page_bounds(head.k, q, 7)
    assert all(bounds[i // 7] >= head.k[i] @ q - CLOSE for i in range(head.n))


def test_int4_errs_by_half_a_step_and_the_rounding_of_what_is_stored():
    x = np.random.default_rng(0).normal(size=(50, 70))
    for levels in (15, 255):
        coded = row_codes.quantise_rows(x, 64, levels)
        step = (x.max() - x.min()) / levels
        assert 0 < np.abs(coded - x).max() <= step / 2 + levels * step * 2.0**-11 + np.abs(x).max() * 2.0**-11
        assert np.array_equal(
            row_codes.quantise_rows(coded[:, :1], 1, levels), coded[:, :1].astype(np.float16)
        )


def test_bfloat16_keeps_eight_bits():
    x = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -3.14159, 0.0])
    assert np.allclose(row_codes.to_bfloat16(x), [1.0, 1.0, 1 + 2.0**-6, -3.140625, 0.0], rtol=0, atol=0)


def test_kivi_keeps_the_residual_exact():
    head = first_head()
    store = formats.make_store(head, {"name": "kivi", "bits": 2, "g": 4, "R": 16})
    store.settle(np.arange(131))  # 128 = 8 * 16 keys are quantised, 3 wait
    changed = np.any(store.k != head.k, axis=1)
    assert changed[:128].all() and not changed[128:].any()
    changed = np.any(store.v != head.v, axis=1)
    assert changed[:115].all() and not changed[115:].any()


def test_gear_of_full_rank_is_exact_and_a_smaller_rank_helps():
    head = first_head()
    errors = []
    for r in (0, 4, 12):
        gear = {"name": "gear", "bits": 2, "g": 4, "R": 16, "rank": r, "outliers": 0}
        store = formats.make_store(head, gear)
        store.settle(np.arange(112))
        errors.append(np.abs(store.k[:112] - head.k[:112]).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < CLOSE


def test_qjl_estimates_inner_products():
    head = first_head()
    matrix = frontier.sketch_matrix(head, 0, 4096)
    mask = frontier.outlier_channels(head.k[:32], 2)
    products = [frontier.Sketched(k, mask, matrix, 4096, 4096).product(head.q[0, -1]) for k in head.k[:60]]
    exact = head.k[:60] @ head.q[0, -1]
    assert np.corrcoef(products, exact)[0, 1] > 0.98
    assert np.abs(products - exact).mean() < 0.2 * np.abs(exact).mean()


def test_sketch_columns_have_the_norm_of_the_dimension():
    head = first_head()
    s = frontier.sketch_matrix(head, 0, 30)
    block = s[:, : head.d]
    assert np.allclose(block.T @ block, head.d * np.eye(head.d))


@pytest.mark.parametrize("g,survivors", [(0, 8), (1, 16), (2, 32), (3, 64)])
def test_kernel_halving_keeps_two_to_the_g_times_the_root(g, survivors):
    head = first_head()
    found = frontier.kernel_halving(head, 41, g=g, sinks=3, recent=9)
    assert len(found.kept[0]) == survivors + 12
    assert found.num[0].sum() == pytest.approx(head.P)


def test_kernel_halving_is_better_balanced_than_its_coins():
    head = first_head()
    errors = [
        error(head, frontier.kernel_halving(head, 41, seed=s, g=2, sinks=3, recent=9).out) for s in range(5)
    ]
    assert np.mean(errors) < 0.5


def test_wildcat_with_every_pivot_is_exact():
    head = first_head()
    found = frontier.wildcat(head, 60, r=200, ridge=0.0, sinks=2, recent=3)
    assert error(head, found.out) < 1e-6


def test_attention_matching_beats_the_bare_selection_on_its_own_rows():
    head = first_head()
    found = frontier.attention_matching(head, 20, train="future", ridge=1e-12)
    bare = formats.replay_stored(head, found.kept[0])
    assert error(head, found.out) < error(head, bare.out)
    assert np.abs(np.log(found.num[0])).max() <= 3 + CLOSE


def test_hybrid_weights_stand_for_all_tokens():
    head = first_head()
    found = frontier.hybrid(head, 41, scorer={**SNAP, "window": 8})
    assert len(found.kept[0]) == 41
    assert found.num[0].sum() == pytest.approx(head.P)


def test_equal_ranks_keep_the_lower_index():
    assert scores.ascending_ranks(np.array([0.5, 0.2, 0.5, 0.9])).tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize("name", ["knorm", "keydiff", "tova", "expected_attention"])
@pytest.mark.parametrize("trace", ["g1", "g3"])
def test_equal_tokens_get_equal_scores(trace, name):
    for heads in layers_of(trace):
        found = scores.score(name, heads)
        for i, head in enumerate(heads):
            tokens = np.concatenate([head.k, head.v], axis=1)[: head.P]
            pairs = [t for t in range(11, head.P) if np.array_equal(tokens[t], tokens[t - 11])]
            assert pairs
            for t in pairs:
                assert found.scores[i, t] == found.scores[i, t - 11]
