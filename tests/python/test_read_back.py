"""`kvreplay.read_back`: keys and values as read back from a row format, and the row from which they are
coded."""

from pathlib import Path

import h5py
import kvreplay as kv
import numpy as np
import pytest
from kvreplay.reading_back import NEVER
from kvreplay_cli import formats_of_heads
from reference.common import Rope
from reference.row_formats import read_back

SAMPLE = Path(__file__).resolve().parents[2] / "traces/samples/smollm2-135m.h5"

ROPE = {"type": "default", "theta": 0, "inv_freq": [0.9**i for i in range(16)], "layout": "half_split"}
SIGNED = {"row_format": {"name": "int4", "rotate": "hadamard_signed"}}
BLOCKS = {"name": "kivi", "bits": 2, "g": 2, "R": 4}


def rows(tokens, width=32, seed=0):
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


def lists(*each):
    return np.concatenate([np.asarray(one, int) for one in each]), np.cumsum([0, *map(len, each)])


def since(row_format, prompt, held=None, tokens=8):
    back = kv.read_back(row_format, rows(tokens), rows(tokens, seed=1), prompt=prompt, held=held)
    return back.key_from.tolist(), back.value_from.tolist()


# --- Rows from which tokens are coded -------------------------------------------------------------


def test_a_token_is_exact_in_its_own_step_and_coded_afterwards():
    assert since("int4", 3, tokens=6) == ([0, 0, 0, 1, 2, 3],) * 2


def test_a_row_coded_at_once_is_coded_in_its_own_step():
    assert since({"name": "int4", "own_row": "coded"}, 3, tokens=6) == ([0, 0, 0, 0, 1, 2],) * 2


def test_a_token_evicted_in_its_own_step_is_never_coded():
    held = lists([0, 2], [0, 3], [0, 3], [3, 5])
    assert since("int8", 3, held, tokens=6)[0] == [0, NEVER, 0, 1, NEVER, 3]


def test_sinks_and_the_newest_rows_of_the_cache_stay_exact():
    protected = {"name": "int4", "full_precision": {"sinks": 1, "recent": 3}}
    assert since(protected, 4)[0] == [NEVER, 0, 1, 2, 3, 4, NEVER, NEVER]
    # The newest held tokens stay exact: token 1 becomes one of them after token 2 is evicted.
    held = lists([0, 1, 3], [0, 1, 3], [0, 1, 3], [0, 1, 3], [0, 1, 3])
    assert since(protected, 4, held)[0][:4] == [NEVER, NEVER, NEVER, NEVER]


def test_kivi_waits_for_a_full_residual_and_leaves_the_newest_values_exact():
    held = lists([0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [2, 3, 4, 5, 6], [3, 4, 5, 6, 7])
    keys, values = since(BLOCKS, 5, held)
    # Four of five keys are due after the prompt; token 4 waits, and 5, 6, 7 are due after the last row but
    # one.
    assert keys == [0, 0, 0, 0, 3, 3, 3, 3]
    assert values == [0, 1, 2, 3, NEVER, NEVER, NEVER, NEVER]


def test_blocks_are_coded_with_those_that_are_held():
    x, y = rows(8), rows(8, seed=1)
    held = lists([0, 2, 4, 5], *[[0, 2, 4, 5]] * 2)
    back = kv.read_back(BLOCKS, x, y, prompt=6, held=held)
    expected = read_back(BLOCKS, "key", x[[0, 2, 4, 5]], prompt=4)
    assert np.allclose(back.keys[[0, 2, 4, 5]], expected, atol=1e-6)
    assert back.key_from[1] == NEVER and np.array_equal(back.keys[1], x[1])


# --- The numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(formats_of_heads()) - {"oscar"}))  # needs the queries
def test_every_format_reads_back_what_its_definition_does(name):
    blocks = name in ("kivi", "gear")  # formats that code all due rows together
    row_format, tokens = ({"name": name, "g": 4, "R": 8}, 24) if blocks else (name, 40)
    x, y = rows(tokens), rows(tokens, seed=1)
    back = kv.read_back(row_format, x, y, prompt=24, rope=ROPE, seed=3)
    turns = Rope(np.array(ROPE["inv_freq"]))
    for part, exact, found, coded in (
        ("key", x, back.keys, back.key_from),
        ("value", y, back.values, back.value_from),
    ):
        known = coded != NEVER
        expected = read_back(row_format, part, exact[known] if part == "value" else exact, prompt=24,
                             rope=turns, seed=3)  # fmt: skip
        expected = expected if part == "value" else expected[known]
        assert known.any() or name == "source"
        assert np.allclose(found[known], expected, atol=2e-5), name


def test_uniforms_replace_the_seeds():
    x, signs = rows(4), np.linspace(0, 0.99, 32)
    signed = SIGNED["row_format"]
    back = kv.read_back(signed, x, x, uniforms={"signs": signs})
    assert np.allclose(back.keys, read_back(signed, "key", x, prompt=4, uniforms={"signs": signs}), atol=2e-5)
    assert not np.allclose(back.keys, kv.read_back(signed, x, x).keys, atol=1e-3)


def test_a_skipped_layer_keeps_its_rows():
    skipping = {"name": "int4", "skip_layers": [0, -1]}
    x = rows(4)
    assert np.array_equal(kv.read_back(skipping, x, x, layer=2, n_layers=3).keys, x)
    assert not np.array_equal(kv.read_back(skipping, x, x, layer=1, n_layers=3).keys, x)


def test_the_engine_reads_the_same_rows_of_a_recorded_layer():
    with h5py.File(SAMPLE, "r") as file:
        prompt = sorted(file["prompts"])[0]
        group = file[f"prompts/{prompt}/layers/015"]
        q, k, v = (group[name][...].astype(np.float32) for name in "qkv")
    nvfp4 = {"name": "exact", "row_format": "nvfp4"}
    run = kv.replay(q, k, v, prefill=640, methods=[nvfp4], save=["outputs"], progress=False)
    back = kv.read_back("nvfp4", k[0], v[0], prompt=640)
    last, scale = q.shape[1] - 1, q.shape[2] ** -0.5
    keys = np.concatenate([back.keys[:last], k[0, last:]])
    logits = keys @ q[0, last] * scale
    weights = np.exp(logits - logits.max())
    expected = weights @ np.concatenate([back.values[:last], v[0, last:]]) / weights.sum()
    seen, found = run.outputs("exact", kv_head=0)
    assert seen[-1] == last
    assert np.allclose(found[0, -1], expected, atol=1e-5)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_format": "int5"}, r'^unknown row format "int5" \(did you mean int8\?\)'),
        ({"row_format": "q8_0"}, "q8_0 takes rows in blocks of 32 numbers, and keys have 8"),
        (
            {"row_format": {"name": "int4", "skip_layers": [1]}},
            "skip_layers names layer 1, and the model has 1",
        ),
        ({"keys": rows(4)[:, :3, None]}, r"keys is \[4, 3, 1\]; it must be \[tokens, dim\], of one kv head"),
        ({"keys": rows(3, 8)}, r"keys is \[3, 8\], values \[4, 8\]: both need as many rows"),
        ({"keys": rows(4, 0)}, r"keys is \[4, 0\]"),
        ({"seed": -1}, "seed: -1 is not 0 to 4294967295"),
        ({"keys": np.arange(32).reshape(4, 8)}, "keys holds int64; give floating-point numbers"),
        ({"prompt": 5}, "prompt: 5 is not 1 to 4"),
        ({"layer": 3, "n_layers": 3}, "layer: 3 is not 0 to 2"),
        ({"positions": [1, 2]}, r"positions is \[2\]; it must be \[4\]"),
        ({"uniforms": {"sign": [0.1]}}, "uniforms: sign is unknown: known are signs"),
        (SIGNED | {"uniforms": {"signs": [0.1]}}, "signs must be 8 numbers in .0, 1., or more: 1 are given"),
        (SIGNED | {"uniforms": {"signs": [1.0] * 8}}, "signs must be 8 numbers"),
        ({"held": ([0], [0, 1, 1, 1])}, "held: 3 lists; give one, or 2"),
        ({"held": ([3, 0], [0, 1, 2])}, "held: a list holds a token of a later step"),
        ({"held": ([0, 3], [0, 3, 2])}, "held: begins does not cut tokens into lists"),
        ({"keys": np.full((4, 8), 1e6, np.float32)}, "beyond 65504"),
    ],
)
def test_an_impossible_read_back_is_refused(change, message):
    words = {"row_format": "int4", "keys": rows(4, 8), "values": rows(4, 8), "prompt": 3} | change
    with pytest.raises(kv.KvreplayError, match=message):
        kv.read_back(**words)


def test_bfloat16_of_torch_is_read():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rows(4)).bfloat16()
    assert np.array_equal(kv.read_back("source", x, x).keys, x.float().numpy())
