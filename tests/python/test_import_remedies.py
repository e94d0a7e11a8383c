"""A refusal of `kvreplay import` names a remedy that works as it is written."""

import os
import subprocess
import sys

import h5py
import ml_dtypes
import numpy as np
import pytest
from kvbase.errors import KvreplayError
from kvreplay.importing import import_file
from kvreplay.trace import Trace
from kvreplay_cli import kvreplay
from safetensors.numpy import load_file, save_file

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TOKENS, PADDING = 12, 3
LEFT_OPEN = """
import os, sys, h5py
f = h5py.File(sys.argv[1], "w", libver="latest")
f.attrs["kvreplay_schema"] = 1
f.swmr_mode = True
f.flush()
os._exit(0)
"""


@pytest.fixture
def arrays():
    draw = np.random.default_rng(0).standard_normal
    shapes = {"q": (4, TOKENS, 8), "k": (2, TOKENS, 8), "v": (2, TOKENS, 8)}
    return {
        f"layers.{layer}.{name}": draw(shape).astype(np.float32)
        for layer in range(2)
        for name, shape in shapes.items()
    }


def refusal(source, out, **how):
    with pytest.raises(KvreplayError) as refused:
        import_file(source, out, **how)
    message = str(refused.value)
    assert "\n" not in message
    return message


def follow(message, start):
    """Runs the Python that a message ends with, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", message[message.index(start) :]], check=False)
    assert done.returncode == 0, message


def test_eight_bit_floats_are_converted_by_the_line_of_the_message(arrays, tmp_path):
    from safetensors.torch import save_file as save_tensors

    source, wide = tmp_path / "a.safetensors", tmp_path / "a-bf16.safetensors"
    kinds = {"q": torch.float32, "k": torch.float8_e4m3fn, "v": torch.float8_e5m2}
    save_tensors({name: torch.tensor(x).to(kinds[name[-1]]) for name, x in arrays.items()}, source)
    message = refusal(source, tmp_path / "t.h5")
    assert "holds 8-bit floats" in message
    follow(message, "import safetensors")
    layer = import_file(wide, tmp_path / "t.h5").layer(1)
    assert layer.raw("k")[1] == "bfloat16"
    exact = torch.tensor(arrays["layers.1.k"]).to(kinds["k"]).float().numpy()
    np.testing.assert_array_equal(np.asarray(layer.k), exact)


def test_named_tensors_of_torch_are_saved_as_safetensors_by_the_line_of_the_message(arrays, tmp_path):
    stacked = torch.stack([torch.tensor(arrays[f"layers.{layer}.k"]) for layer in range(2)])
    tensors = {name: torch.tensor(x) for name, x in arrays.items()}
    tensors |= {f"layers.{layer}.k": stacked[layer] for layer in range(2)}  # these two share memory
    torch.save(tensors, tmp_path / "a.pt")
    follow(refusal(tmp_path / "a.pt", tmp_path / "t.h5"), "import torch")
    trace = import_file(tmp_path / "a.safetensors", tmp_path / "t.h5")
    np.testing.assert_array_equal(np.asarray(trace.layer(1).k), arrays["layers.1.k"])


def test_a_pickled_cache_says_where_its_keys_and_values_are(arrays, tmp_path):
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    for layer in range(2):
        cache.update(*(torch.tensor(arrays[f"layers.{layer}.{name}"])[None] for name in "kv"), layer)
    torch.save(cache, tmp_path / "cache.pt")
    message = refusal(tmp_path / "cache.pt", tmp_path / "t.h5")
    assert "holds a DynamicCache" in message and "`kvreplay record`" in message
    c = torch.load(tmp_path / "cache.pt", weights_only=False)
    for name, text in (("k", "c.layers[N].keys[0].clone()"), ("v", "c.layers[N].values[0].clone()")):
        assert f"layers.N.{name} is {text}" in message
        np.testing.assert_array_equal(eval(text, {"c": c, "N": 1}), arrays[f"layers.1.{name}"])


def test_padding_that_is_cut_as_the_message_says_is_imported(arrays, tmp_path):
    mask = np.r_[np.zeros(PADDING, np.int32), np.ones(TOKENS - PADDING, np.int32)]
    positions = np.maximum(np.cumsum(mask) - 1, 0).astype(np.int32)
    save_file(arrays | {"attention_mask": mask, "position_ids": positions}, tmp_path / "a.safetensors")
    message = refusal(tmp_path / "a.safetensors", tmp_path / "t.h5")
    assert f"masks {PADDING} tokens of padding" in message and "cut their rows" in message
    held = load_file(tmp_path / "a.safetensors")
    kept = held.pop("attention_mask") == 1
    cut = {
        name: np.ascontiguousarray(x[..., kept, :] if x.ndim == 3 else x[kept]) for name, x in held.items()
    }
    save_file(cut, tmp_path / "b.safetensors")
    trace = import_file(tmp_path / "b.safetensors", tmp_path / "t.h5")
    assert trace.layer(0).n_tokens == TOKENS - PADDING
    save_file(cut | {"attention_mask": mask[kept]}, tmp_path / "c.safetensors")
    assert "is 1 everywhere: leave it out" in refusal(tmp_path / "c.safetensors", tmp_path / "u.h5")


def test_positions_of_queries_are_an_array_of_the_source(arrays, tmp_path):
    few = {name: np.ascontiguousarray(x[:, -4:]) if name.endswith("q") else x for name, x in arrays.items()}
    save_file(few, tmp_path / "a.safetensors")
    message = refusal(tmp_path / "a.safetensors", tmp_path / "t.h5", sidecar={"q_pos": [8, 9, 10, 11]})
    assert "as arrays layers.N.q_pos, int32 [Tq]" in message
    few |= {f"layers.{layer}.q_pos": np.arange(8, 12, dtype=np.int32) for layer in range(2)}
    save_file(few, tmp_path / "a.safetensors")
    assert import_file(tmp_path / "a.safetensors", tmp_path / "t.h5").layer(0).q.shape[1] == 4


def test_chunks_without_queries_ask_for_their_files(tmp_path):
    np.save(tmp_path / "kv.npy", np.zeros((2, 2, TOKENS, 16), np.float32))
    assert "holds no queries: give their files with --queries" in refusal(
        tmp_path / "kv.npy", tmp_path / "t.h5", sidecar={"head_dim": 8}
    )


@pytest.mark.parametrize("how", ["by h5py", "as uint16"])
def test_bfloat16_of_an_own_writer_is_stored_as_the_message_says(how, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, TOKENS, 8)).astype(ml_dtypes.bfloat16)
    file = tmp_path / "t.h5"
    with h5py.File(file, "w") as f:
        f.attrs["kvreplay_schema"] = 1
        layer = f.create_group("prompts/p0/layers/000")
        layer.attrs["scaling"] = 0.25
        layer["q"] = layer["k"] = layer["v"] = x if how == "by h5py" else x.view("uint16")
    done = kvreplay("validate", file)
    with pytest.raises(KvreplayError) as refused:
        Trace(file).layer(0)
    for message in (done.stderr, str(refused.value)):
        assert 'with the attribute source_dtype = "bfloat16" of the layer\'s group' in message
        assert ('stored as x.view("uint16")' if how == "by h5py" else "stored as uint16") in message
    with h5py.File(file, "r+") as f:
        layer = f["prompts/p0/layers/000"]
        layer.attrs["source_dtype"] = "bfloat16"
        for name in "qkv":
            del layer[name]
            layer[name] = x.view("uint16")
    assert kvreplay("validate", "--deep", file).returncode == 0
    np.testing.assert_array_equal(np.asarray(Trace(file).layer(0).k), x.astype(np.float32))


def test_a_file_that_its_writer_left_open_says_so(tmp_path):
    file = tmp_path / "t.h5"
    subprocess.run([sys.executable, "-c", LEFT_OPEN, file], check=True, env={**os.environ})
    done = kvreplay("validate", file)
    with pytest.raises(KvreplayError) as refused:
        Trace(file).layer(0)
    for message in (done.stderr, str(refused.value)):
        assert "clear its mark on a copy (cp FILE COPY && h5clear -s COPY" in message
        assert len(message.splitlines()) == 1
