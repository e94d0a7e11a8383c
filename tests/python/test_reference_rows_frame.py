"""Which rows are coded and when, in every format: protection, positions, constants, blocks of rows."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from reference import recency
from reference import row_codes as codes
from reference.common import Head, Rope, exact_out
from reference.row_blocks import Gear, Kivi, low_rank
from reference.row_formats import FORMATS, coder_of, parse, read_back, rotated, row_bytes, unrotated
from reference.row_formats_calibrated import KVQuant
from reference.row_rotations import Draws
from reference.row_store import Store
from reference.tier2_formats import exact, streaming_llm

SAMPLE = Path(__file__).parents[2] / "traces" / "samples" / "smollm2-135m.h5"
EXACT = 1e-14


def read(row_format, x, part="key", **o):
    return read_back(row_format, part, np.asarray(x, dtype=float), prompt=len(x), **o)


# --- Frame ------------------------------------------------------------------------------------------------


def small_head(**more):
    rng = np.random.default_rng(7)
    q, k, v = rng.normal(size=(2, 60, 16)), rng.normal(size=(60, 16)), rng.normal(size=(60, 32))
    rope = Rope(10000.0 ** (-np.arange(0, 16, 2) / 16))
    return Head(q=q, k=k, v=v, scale=0.25, P=40, rope=rope, **more)


PLAIN = [name for name in FORMATS if name != "tq_value" and not name.startswith("q")]


@pytest.mark.parametrize("name", [*PLAIN, "kivi", "turboquant_4bit_nc"])
def test_a_format_named_for_both_parts_is_the_format(name):
    head = small_head()
    blocks = {"g": 8, "R": 8} if name == "kivi" else {}
    one, both = {"name": name, **blocks}, {"key": name, "value": name, **blocks}
    a, b = exact(head, one, seed=4), exact(head, both, seed=4)
    assert a.out.tolist() == b.out.tolist() and a.extras["account"].final == b.extras["account"].final
    assert np.abs(a.out - exact_out(head)).max() > 1e-12


def test_a_part_that_is_not_named_stays_as_the_trace_has_it():
    store = Store(small_head(), {"key": "int4"})
    store.settle(np.arange(40))
    assert (store.k[:40] != small_head().k[:40]).any() and store.v.tolist() == small_head().v.tolist()


@pytest.mark.parametrize(
    "more",
    [
        {"full_precision": {"sinks": 60, "recent": 1}},
        {"full_precision": {"sinks": 0, "recent": 61}},
        {"skip_layers": [0]},
        {"skip_layers": [-1]},
    ],
    ids=json.dumps,
)
def test_protecting_every_row_is_the_exact_cache(more):
    head = small_head()
    found = exact(head, {"name": "int2", **more})
    assert np.abs(found.out - exact_out(head)).max() <= EXACT
    assert found.extras["account"].final == 60 * 4 * 48


def coded_rows(store, head):
    return np.flatnonzero((store.k != head.k).any(axis=1)).tolist()


def test_sinks_and_the_newest_rows_stay_exact():
    head = small_head()
    store = Store(head, {"name": "int4", "full_precision": {"sinks": 3, "recent": 5}})
    store.settle(np.arange(40))
    assert coded_rows(store, head) == list(range(3, 36))
    store.settle(np.append(np.arange(10), [30, 37, 38, 39, 40]))  # the four newest held rows stay
    assert coded_rows(store, head) == list(range(3, 36))
    store.settle(np.append(np.arange(10), [37, 38, 39, 40, 41]))
    assert coded_rows(store, head) == [*range(3, 36), 37]


def test_a_row_that_is_coded_in_its_own_step_changes_what_that_step_sees():
    head = small_head()
    late, own = exact(head, "int4"), exact(head, {"name": "int4", "own_row": "coded"})
    coded = read("int4", head.k)
    logits = head.scale * head.q[:, 40] @ coded[:41].T
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = p @ read("int4", head.v, "value")[:41]
    assert np.abs(own.out[:, 0] - expected).max() <= EXACT < np.abs(late.out[:, 0] - expected).max()


def test_sinks_take_no_part_in_the_groups_of_kivi():
    head = small_head()
    kivi = {"name": "kivi", "bits": 2, "g": 8, "R": 16}
    store = Store(head, {**kivi, "full_precision": {"sinks": 5}})
    store.settle(np.arange(40))
    assert coded_rows(store, head) == list(range(5, 37))
    assert store.k[5:13].tolist() == Kivi("key", 2, 8, 16).read(head.k[5:13])[0].tolist()
    assert np.flatnonzero((store.v != head.v).any(axis=1)).tolist() == list(range(5, 24))


def test_keys_before_rope_are_coded_at_position_zero():
    head = small_head()
    still = np.tile(head.k[:1], (40, 1))  # one vector at every position: no range before RoPE
    k = rotated(still, np.arange(40), head.rope)
    kivi = {"name": "kivi", "bits": 2, "g": 8, "R": 8}
    before = read({**kivi, "keys": "pre_rope"}, k, rope=head.rope)
    assert np.abs(before - k).max() < 2e-3 < 0.1 < np.abs(read(kivi, k) - k).max()


def test_an_attention_factor_is_divided_out_before_keys_are_coded():
    rope = Rope(np.array([1.0, 0.1]), factor=1.25)
    k = np.random.default_rng(3).normal(size=(6, 6))
    back = unrotated(k, np.arange(6), rope)
    assert np.allclose(back[0, :4] * 1.25, k[0, :4]) and back[0, 4:].tolist() == k[0, 4:].tolist()
    assert np.abs(rotated(back, np.arange(6), rope) - k).max() <= EXACT


def test_a_key_at_its_place_in_the_cache_is_the_coded_one_turned():
    head = small_head()
    plain, turned = streaming_llm(head, 12).out, recency.streaming_llm(head, 12).out
    assert np.abs(plain - turned).max() <= EXACT
    for keys in ("pre_rope", "post_rope"):
        f32 = streaming_llm(head, 12, {"key": {"name": "f32", "keys": keys}}).out
        coded = streaming_llm(head, 12, {"key": {"name": "int4", "keys": keys}}).out
        assert np.abs(f32 - plain).max() < 1e-6 < 1e-3 < np.abs(coded - plain).max()


def test_a_row_of_a_turboquant_word_takes_an_even_number_of_bytes():
    rng = np.random.default_rng(7)
    head = Head(rng.normal(size=(1, 20, 8)), *rng.normal(size=(2, 20, 8)), scale=1.0, P=12)
    word = {"key": "turboquant_k3v4_nc", "value": "turboquant_k3v4_nc"}
    assert exact(head, "turboquant_k3v4_nc").extras["account"].final == 20 * 14  # 3 + 2 and 4 + 4
    assert exact(head, word).extras["account"].final == 20 * 14
    assert exact(head, {**word, "value": "fp8_e4m3"}).extras["account"].final == 20 * 13


def test_constants_come_from_the_prompt_alone():
    head = small_head()
    later = small_head()
    later.k[40:] *= 50
    for name in ("kvquant", "pca"):
        a, b = Store(head, name), Store(later, name)
        for store in (a, b):
            store.settle(np.arange(40))
        assert a.k[:40].tolist() == b.k[:40].tolist()


@pytest.mark.parametrize(
    "row_format",
    [
        {"name": "tq_mse", "rotate": "haar"},
        {"name": "polar", "rotate": "hadamard"},
        {"name": "turboquant_k8v4", "rotate": "hadamard"},
        {"name": "kvquant", "rotate": "haar"},
        {"name": "pca", "rotate": "haar"},
        {"name": "kivi", "full_precision": {"recent": 2}},
        {"name": "kivi", "own_row": "coded"},
        {"name": "int4", "own_row": "coded", "full_precision": {"recent": 2}},
        {"key": {"name": "kivi", "rotate": "hadamard"}},
    ],
    ids=json.dumps,
)
def test_a_combination_without_a_meaning_is_refused(row_format):
    with pytest.raises(ValueError, match=r"rotat|recent|step"):
        parse(row_format)


@pytest.mark.parametrize("name,d", [("nvfp4", 24), ("q4_0", 48), ("q8_0", 16), ("polar", 24)])
def test_a_width_without_whole_blocks_is_refused(name, d):
    with pytest.raises(ValueError, match="whole blocks"):
        row_bytes(name, "key", d)


def test_numbers_that_cannot_be_stored_are_refused():
    for name, x in (("q8_0", 1e8), ("int4", -1e5), ("tq_mse", 1e5), ("fp8_e4m3", np.inf), ("mxfp4", np.nan)):
        with pytest.raises(codes.Unstorable):
            read(name, np.array([[x] + [0.0] * 31]))


# --- Calibrated formats -----------------------------------------------------------------------------------


def test_kvquant_stores_outliers_separately():
    x = np.random.default_rng(1).normal(size=(300, 64))
    coder = coder_of(parse({"name": "kvquant", "bits": 3}).value, "value", 64, x, Draws())
    code, scale = coder.sizes(x)
    assert set(code) == {24} and set(scale) == {4 + 2 * 4}  # two extremes per row of 64
    found = coder.read(x)
    for extreme in (x.argmax(axis=1), x.argmin(axis=1)):
        at = np.arange(300), extreme
        assert found[at].tolist() == codes.float16(x[at]).tolist()
    keys = coder_of(parse({"name": "kvquant", "bits": 3}).key, "key", 64, x, Draws())
    assert keys.sizes(x[4:])[1].mean() == pytest.approx(0.01 * 64 * 4, rel=0.5)


def test_kvquant_scales_a_row_without_its_outliers():
    x = 10 + np.random.default_rng(1).random((50, 64))
    _, out, offset, half = KVQuant("value", x).scaled(x)
    inner = np.sort(x, axis=1)[:, 1:-1]
    assert out.sum(axis=1).tolist() == [2] * 50
    assert (offset + half)[:, 0] == pytest.approx(inner[:, -1], rel=EXACT)
    assert (offset - half)[:, 0] == pytest.approx(inner[:, 0], rel=EXACT)


def test_kvquant_without_outliers_clips_later_rows():
    x = np.random.default_rng(1).normal(size=(50, 8))
    coder = coder_of(parse({"name": "kvquant", "outliers": 0}).key, "key", 8, x, Draws())
    later = x[:1] + 100
    assert coder.sizes(later)[1].tolist() == [0] and np.abs(coder.read(later)).max() < np.abs(x).max() + 0.01


def test_pca_spends_its_bits_where_the_variance_is():
    rng = np.random.default_rng(2)
    basis = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    x = rng.normal(size=(400, 8)) * [9, 5, 0, 0, 0, 0, 0, 0] @ basis.T + 3
    found = read({"name": "pca", "bits": 1}, x)
    missed = ((found - x) ** 2).sum() / ((x - x.mean(axis=0)) ** 2).sum()
    assert missed < 0.012  # 5 and 3 bits on two components
    assert read({"name": "pca", "bits": 0}, x)[7] == pytest.approx(x[4:].mean(axis=0))


# --- kivi and gear ----------------------------------------------------------------------------------------


def test_gear_takes_outliers_from_its_input():
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, size=(100, 8))
    x[7, 3], x[60, 3] = 50, -50
    found, _, outliers = Gear("key", bits=4, g=100, R=100, rank=0, outliers=2).read(x)
    assert outliers == 2 * 8
    assert found[7, 3] == 50 and found[60, 3] == -50
    assert np.abs(found - x).max() <= 1 / 15 + 1e-3  # half a step of the range without outliers
    late, _, _ = Gear("key", bits=4, g=100, R=100, rank=0, outliers=0.25, order="residual").read(x)
    assert np.abs(late[:, 3] - x[:, 3]).max() > 0.5


def test_gear_fills_outliers_with_the_mean_of_the_line():
    x = np.concatenate([np.arange(50.0, 148), [1000, -1000]])[None]
    found, _, _ = Gear("value", bits=4, g=100, R=100, rank=0, outliers=2).read(x)
    filled = x.copy()
    filled[0, 98:] = x.mean()
    assert found[0, :98].tolist() == codes.quantise_rows(filled, 100, 15)[0, :98].tolist()


def test_gear_corrects_outliers_too():
    x = np.random.default_rng(6).normal(size=(128, 16))
    gear = Gear("key", bits=2, g=32, R=128, rank=2, outliers=4)
    bare = Gear("key", bits=2, g=32, R=128, rank=0, outliers=4).read(x)[0]
    assert np.abs(gear.read(x)[0] - (bare + low_rank(x - bare, 2))).max() <= EXACT
    exact_ones = np.abs(bare - x) == 0
    assert exact_ones.sum() >= 2 * 2 * 16 and (np.abs(gear.read(x)[0] - x)[exact_ones] > 0).any()


def test_gear_finds_no_outliers_in_a_short_line():
    x = np.random.default_rng(6).normal(size=(20, 64))
    found, _, outliers = Gear("value", bits=2, rank=0, outliers=2).read(x)
    assert outliers == 0 and found.tolist() == Kivi("value", bits=2).read(x)[0].tolist()


def test_the_order_of_gear_weighs_on_values_as_published():
    with h5py.File(SAMPLE) as f:
        v = f["prompts/0/layers/023/v"][2].astype(np.float64)
    errors = [
        np.linalg.norm(Gear("value", bits=2, order=order).read(v)[0] - v) / np.linalg.norm(v)
        for order in ("outliers_first", "residual")
    ]
    assert errors == pytest.approx([0.385, 0.355], abs=0.005)


def test_an_odd_width_has_no_hadamard_matrix():
    with pytest.raises(ValueError, match="power of two"):
        read({"name": "int4", "rotate": "hadamard"}, np.ones((2, 11)))
    assert read({"name": "f32", "rotate": "haar"}, np.ones((2, 11))) == pytest.approx(1.0)
