"""The numpy definitions of the row formats: recorded expectations, examples by hand, properties of a row."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from reference import row_codes as codes
from reference.common import Head, Rope, exact_out
from reference.row_formats import (
    parse,
    read_back,
    row_bytes,
    static_bytes,
    unrotated,
)
from reference.row_formats_rotated import polar, tq_mse, tq_prod
from reference.row_rotations import Draws, angle_levels, beta_levels, gauss_levels
from reference.tier2_formats import exact

GOLDEN = Path(__file__).parents[1] / "golden" / "rows_dev.h5"
CLOSE = 1e-6  # relative to the largest number of a row: expectations are stored in float32
CONVERGED = 1e-12  # difference to recorded levels, which stop a few steps earlier
EXACT = 1e-14
FROM = 4  # the first prompt row that kvquant's calibration and byte count use


# --- Recorded expectations --------------------------------------------------------------------------------


def keys_of(kind):
    with h5py.File(GOLDEN) as f:
        return [(case, key) for case, c in f["cases"].items() for key in c.get(kind, {})]


def uniforms_of(case):
    return {name.removeprefix("U_"): case[name][:] for name in case if name.startswith("U_")}


def far(found, expected):
    """The largest distance, relative to the largest expected number of its row."""
    expected = expected.astype(np.float64)
    return (np.abs(found - expected).max(axis=-1) / (np.abs(expected).max(axis=-1) + 1e-300)).max()


@pytest.mark.parametrize("case,key", keys_of("results"))
def test_a_row_reads_back_as_recorded_and_takes_as_many_bytes(case, key):
    with h5py.File(GOLDEN) as f:
        c, r = f["cases"][case], f["cases"][case]["results"][key]
        row_format, P, rope = (
            json.loads(r.attrs["row_format"]),
            int(c.attrs["P"]),
            Rope(c["rope_inv_freq"][:]),
        )
        for part, x in (("key", c["k"][:]), ("value", c["v"][:])):
            x = x.astype(np.float64)
            found = read_back(row_format, part, x, prompt=P, rope=rope, uniforms=uniforms_of(c))
            assert far(found, r[f"{part}_hat"][:]) <= CLOSE, part
            rows = x
            if part == "key" and parse(row_format).key.pre_rope:
                rows = unrotated(x, np.arange(len(x)), rope)
            size = row_bytes(
                row_format, part, x.shape[1], rows[FROM:] if len(rows) > FROM else rows, rows[:P]
            )
            assert sum(size) == pytest.approx(r.attrs[f"bytes_{part}"], rel=EXACT), part
        found = sum(
            static_bytes(row_format, part, int(c.attrs[d])) for part, d in (("key", "d"), ("value", "dv"))
        )
        assert found == r.attrs["static_bytes"]


@pytest.mark.parametrize("case,key", keys_of("stream"))
def test_a_full_cache_attends_as_recorded_and_ends_with_as_many_bytes(case, key):
    with h5py.File(GOLDEN) as f:
        c, r = f["cases"][case], f["cases"][case]["stream"][key]
        rope = Rope(c["rope_inv_freq"][:])
        head = Head(c["q"][:], c["k"][:], c["v"][:], float(c.attrs["scale"]), int(c.attrs["P"]), rope=rope)
        row_format = json.loads(r.attrs["row_format"])
        sinks, recent = json.loads(r.attrs["full_precision"])
        framed = {
            **({"name": row_format} if isinstance(row_format, str) else row_format),
            "full_precision": {"sinks": sinks, "recent": max(1, recent)},
            "own_row": r.attrs["own_row"],
        }
        found = exact(head, framed, uniforms=uniforms_of(c))
        assert far(found.out, r["out"][:]) <= CLOSE
        assert found.extras["account"].final == r.attrs["final_bytes"]
        right = exact_out(head)
        error = np.linalg.norm(found.out - right, axis=2) / np.linalg.norm(right, axis=2)
        assert error.mean() == pytest.approx(r.attrs["rel_err_out_mean"], rel=CLOSE)


def test_the_levels_are_those_recorded():
    with h5py.File(GOLDEN) as f:
        for name, levels in f["codebooks"].items():
            density, bits, *d = name.split("_")
            found = gauss_levels(int(bits)) if density == "gauss" else beta_levels(int(bits), int(d[0]))
            assert np.abs(found - levels[:]).max() <= CONVERGED, name


# --- Examples by hand -------------------------------------------------------------------------------------


def row(*numbers, width=None):
    """One row [1, width], zeros behind the numbers."""
    x = np.zeros((1, width or len(numbers)))
    x[0, : len(numbers)] = numbers
    return x


def read(row_format, x, part="key", **o):
    return read_back(row_format, part, np.asarray(x, dtype=float), prompt=len(x), **o)


def test_fp8_rounds_ties_to_even_and_saturates():
    found = read("fp8_e4m3", row(0.3, 17, 19, 464, 1000, -1000, 0.001, 0))
    assert found.tolist() == row(0.3125, 16, 20, 448, 448, -448, 2.0**-9, 0).tolist()
    assert read("fp8_e5m2", row(0.3, 22)).tolist() == row(0.3125, 24).tolist()


def test_a_scale_per_row_serves_that_row_alone():
    x = np.concatenate([row(448, 1, 0), row(7, 1.001, 0)])
    assert read({"name": "fp8_e4m3", "scale": "token"}, x)[:, 0].tolist() == [448.0, 7.0]
    head = read({"name": "fp8_e4m3", "scale": "head"}, x)
    assert head[1].tolist() == read("fp8_e4m3", x)[1].tolist()
    assert head[1, 1] == 1.0 and read({"name": "fp8_e4m3", "scale": "token"}, x)[1, 1] == pytest.approx(1.0)


def test_nvfp4_reads_the_example_back():
    assert read("nvfp4", row(1, -0.3, 0.05, 7, width=16))[0, :4].tolist() == [1.125, -0.5625, 0, 6.75]


def test_nvfp4_with_scale_one_loses_small_blocks():
    least = 6 * 2.0**-10
    assert not read("nvfp4", row(least, width=16)).any()
    assert read("nvfp4", row(least * 1.001, width=16)).any()


def test_four_over_six_takes_the_better_of_two_scales():
    x = row(4, 3, 3, 3, width=16)  # with 6 the scale is 0.6875, and 3 is read back as 2.75
    assert read({"name": "nvfp4", "search": "four_over_six"}, x).tolist() == x.tolist()
    assert read("nvfp4", x)[0, 1] != 3


def test_mxfp4_reads_the_example_back():
    x = row(1, -0.3, 0.05, 7, width=32)
    assert read("mxfp4", x)[0, :4].tolist() == [1, -0.5, 0, 6]
    assert read({"name": "mxfp4", "scale_rounding": "ceil"}, x)[0, :4].tolist() == [1, 0, 0, 8]


def test_a_group_of_two_numbers_is_exact_until_it_is_rotated_into_more():
    x, h = row(4, 1, 1, 1), Draws().matrix("hadamard", 4)
    assert (x @ h).tolist() == row(3.5, 1.5, 1.5, 1.5).tolist()
    for two in (x, x @ h):
        assert np.abs(read("int4", two) - two).max() <= 15 * 0.2 * 2.0**-11  # the step in float16
    more = row(4, 1, 1, 4.5)
    assert np.abs(read({"name": "int4", "rotate": "hadamard"}, more) - more).max() > 0.05


def test_q4_0_clips_the_side_opposite_to_the_extreme():
    assert read("q4_0", row(8, -1, 3.6, -8, width=32))[0, :4].tolist() == [8, -1, 4, -7]


def test_the_blocks_of_llama_cpp_read_what_has_no_range():
    zeros, threes = np.zeros((1, 32)), np.full((1, 32), 3.0)
    for name in codes.GGML_BITS:
        assert not read(name, zeros).any()
        assert np.abs(read(name, threes) - 3).max() < 0.02
    assert read("q4_1", threes).tolist() == threes.tolist()


def test_int4_token_head_hides_the_zero_point_in_the_scale():
    x = row(-1, 0.25, 0.5, 2.75)
    found = read({"name": "int4_token_head", "rotate": "none"}, x)
    assert found.tolist() == (x * (1 + 4 * 2.0**-23)).tolist()


def test_int4_token_head_loses_the_far_end_of_a_row_of_one_sign():
    found = read({"name": "int4_token_head", "rotate": "none"}, row(10, 11, 12, 13))
    assert found.max() == pytest.approx(15 * 0.2, rel=1e-5)


def test_turboquant_reads_the_examples_back():
    k, v = row(2, 0, 0, 0), row(0, 0.5, 1, 15)
    draws = Draws()
    plain = tq_mse(k, draws, 3, "hadamard", "gauss")
    assert np.allclose(plain, row(1.51201, 0, 0, 0), rtol=0, atol=1e-5)
    assert np.allclose(read("turboquant_k3v4_nc", k), k, rtol=0, atol=1e-7)
    assert read("turboquant_k3v4_nc", v, "value").tolist() == row(0, 1, 1, 15).tolist()
    assert read("int4", v, "value").tolist() == row(0, 0, 1, 15).tolist()


def test_polar_reads_the_example_back():
    h = Draws().matrix("hadamard", 2)
    found = polar(row(3, 4) @ h, Draws(), levels=(4,), rotation="hadamard") @ h
    assert np.allclose(found, row(2.778, 4.157), rtol=0, atol=1e-3)


def test_the_levels_are_those_of_the_text():
    positive = {
        2: [0.452780, 1.510418],
        3: [0.245094, 0.756005, 1.343909, 2.151946],
        4: [0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590],
    }
    for bits, levels in positive.items():
        assert np.abs(gauss_levels(bits)[2 ** (bits - 1) :] - levels).max() < 1e-6
    assert np.abs(beta_levels(3, 64)[4:] * 8 - [0.243753, 0.750658, 1.329343, 2.111311]).max() < 1e-6


def test_a_coded_directions_error_follows_from_its_bits():
    x = np.random.default_rng(5).normal(size=(4000, 64))
    for bits, left in ((1, 0.359), (2, 0.115), (3, 0.0337), (4, 0.0092)):
        missed = ((tq_mse(x, Draws(), bits) - x) ** 2).sum(axis=1) / (x**2).sum(axis=1)
        assert missed.mean() == pytest.approx(left, rel=0.01)
    for bits, left in ((1, 0.3634), (2, 0.1175), (3, 0.03455), (4, 0.009501), (5, 0.002505)):
        levels = gauss_levels(bits)
        z = np.linspace(-8, 8, 400_001)
        code = np.searchsorted((levels[:-1] + levels[1:]) / 2, z)
        density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        assert ((z - levels[code]) ** 2 * density).sum() * (z[1] - z[0]) == pytest.approx(left, rel=1e-3)


# Bytes of a row (keys, values) at 64 and at 128 channels.
SIZES = {
    "fp8_e4m3": (128, 256),
    "fp8_e5m2": (128, 256),
    "int8": (136, 272),
    "int4": (72, 144),
    "int3": (56, 112),
    "int2": (40, 80),
    "mxfp8": (132, 264),
    "mxfp4": (68, 136),
    "nvfp4": (72, 144),
    "q8_0": (136, 272),
    "q5_1": (96, 192),
    "q5_0": (88, 176),
    "q4_1": (80, 160),
    "q4_0": (72, 144),
    "int8_token_head": (136, 264),
    "int4_token_head": (72, 136),
    "turboquant_k8v4": (100, 196),
    "turboquant_4bit_nc": (70, 134),
    "turboquant_k3v4_nc": (62, 118),
    "turboquant_3bit_nc": (54, 102),
    "tq_mse": (52, 100),
    "tq_prod": (56, 104),
    "polar": (62, 124),
    "kivi": (80, 160),
    "pca": (32, 64),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_row_takes_the_bytes_of_the_table(name):
    for d, size in zip((64, 128), SIZES[name], strict=True):
        assert sum(sum(row_bytes(name, part, d)) for part in ("key", "value")) == size


def test_a_scale_per_token_takes_four_bytes_and_one_of_the_head_four_once():
    token, head = ({"name": "fp8_e4m3", "scale": scale} for scale in ("token", "head"))
    assert row_bytes(token, "key", 64) == (64, 4) and static_bytes(token, "key", 64) == 0
    assert row_bytes(head, "key", 64) == (64, 0) and static_bytes(head, "key", 64) == 4


# --- Properties -------------------------------------------------------------------------------------------

DRAWN = np.random.default_rng(11)
X = DRAWN.normal(size=(40, 64)) * np.exp(DRAWN.normal(size=(40, 1)))
NORMAL = {"e4m3": (2.0**-6, 448), "e5m2": (2.0**-14, 57344)}
PARTS = [(16, "e4m3"), (8, "e5m2")]


def finite_codes(element):
    mantissa, least, greatest, _ = codes.SMALL_FLOATS[element]
    subnormal = np.arange(2**mantissa) * 2.0 ** (least - mantissa)
    normal = [
        (1 + i / 2**mantissa) * 2.0**e
        for e in range(least, int(np.log2(greatest)) + 1)
        for i in range(2**mantissa)
    ]
    return np.append(subnormal, [x for x in normal if x <= greatest])


@pytest.mark.parametrize("share,element", PARTS)
def test_fp8_keeps_its_codes_and_the_order_and_errs_by_half_a_step(share, element):
    every = finite_codes(element)
    assert len(every) == {"e4m3": 127, "e5m2": 124}[element]
    assert codes.small_float(every, element).tolist() == every.tolist()
    least, greatest = NORMAL[element]
    x = np.geomspace(least, greatest, 5000)
    found = codes.small_float(x, element)
    assert (np.diff(found) >= 0).all()
    assert (np.abs(found - x) <= x / share).all()
    assert codes.small_float(-x, element).tolist() == (-found).tolist()


IDEMPOTENT = [
    "mxfp4",
    "mxfp8",
    {"name": "mxfp8", "element": "e5m2"},
    {"name": "mxfp4", "scale_rounding": "ceil", "block": 16},
    {"name": "mxfp8", "scale_rounding": "ceil"},
    "nvfp4",
    "fp8_e4m3",
]


@pytest.mark.parametrize("row_format", IDEMPOTENT, ids=json.dumps)
def test_reading_back_twice_changes_nothing(row_format):
    once = read(row_format, X)
    assert once.tolist() != X.tolist()
    assert read(row_format, once).tolist() == once.tolist()


@pytest.mark.parametrize("kind", ["hadamard", "hadamard_signed", "haar"])
@pytest.mark.parametrize("d", [24, 64, 96])
def test_a_rotation_is_orthogonal_and_costs_nothing_by_itself(kind, d):
    m = Draws(3).matrix(kind, d)
    assert np.abs(m @ m.T - np.eye(d)).max() <= EXACT
    x = DRAWN.normal(size=(9, d))
    assert np.abs(x @ m - x).max() > 0.1
    assert far(read({"name": "f32", "rotate": kind}, x, seed=3), x) <= CLOSE


def test_a_rotation_stays_within_its_blocks():
    m = Draws().matrix("hadamard", 24)
    assert np.abs(m[:8, 8:]).max() == 0 and np.abs(m[:8, :8]).min() == pytest.approx(8**-0.5)
    pair = Draws().matrix("hadamard", 24, 2)[1]
    assert np.abs(pair - row(2**-0.5, -(2**-0.5), width=24)[0]).max() <= EXACT


def test_draws_follow_the_seed_and_the_shorter_part_reads_their_beginning():
    assert Draws(1).signs(64).tolist() != Draws(2).signs(64).tolist()
    assert Draws(1).signs(24).tolist() == Draws(1).signs(64)[:24].tolist()
    arrays = [Draws(1).uniforms(name, 4)[0] for name in ("signs", "rotation", "sketch")]
    assert len(set(arrays)) == 3
    given = {"signs": Draws(1).uniforms("signs", 64)}
    assert Draws(9, given).signs(64).tolist() == Draws(1).signs(64).tolist()


def test_polar_s_levels_are_symmetric_about_a_quarter_turn():
    for bits, level in ((2, 2), (2, 3), (2, 4), (3, 2)):
        levels = angle_levels(bits, level)
        assert np.abs(levels + levels[::-1] - np.pi / 2).max() <= CLOSE and (np.diff(levels) > 0).all()


ROTATION = {"rotation": np.random.default_rng(4).random(256)}


def test_the_sketch_estimates_products_without_bias():
    rng = np.random.default_rng(9)
    q, k = rng.normal(size=16), rng.normal(size=(1, 16))
    estimates = np.array([(tq_prod(k, Draws(seed, ROTATION), 2) @ q)[0] for seed in range(2000)])
    length = np.sqrt((k**2).sum())
    expected = (k @ q)[0] * codes.float16(length) / length
    assert abs(estimates.mean() - expected) <= 4 * estimates.std() / np.sqrt(2000)
    assert abs((tq_mse(k, Draws(0, ROTATION), 1) @ q)[0] - expected) > 8 * estimates.std() / np.sqrt(2000)
