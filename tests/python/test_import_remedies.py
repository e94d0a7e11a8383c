"""A refusal of `kvreplay import` names a remedy that works as it is written."""

import os
import shutil
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


def warned(arrays, positions, folder):
    """The warning about positions of arrays that are imported, or None."""
    save_file(arrays | {"position_ids": np.asarray(positions, np.int32)}, folder / "a.safetensors")
    said = []
    import_file(folder / "a.safetensors", folder / "t.h5", say=said.append)
    warnings = [line for line in said if line.startswith("warning: ")]
    assert len(warnings) <= 1
    return warnings[0].removeprefix("warning: position_ids ") if warnings else None


def test_positions_that_are_not_one_whole_sequence_are_named_and_the_remedy_ends_it(arrays, tmp_path):
    padded = np.maximum(np.arange(TOKENS) - PADDING, 0)
    says = warned(arrays, padded, tmp_path)
    assert says.startswith("do not rise at row 1 (0, then 0): rows of padding, or of a second sequence, ")
    assert "Cut them from q, k, v, token_ids and position_ids" in says
    cut = {name: np.ascontiguousarray(x[:, PADDING:]) for name, x in arrays.items()}
    assert warned(cut, padded[PADDING:], tmp_path) is None
    says = warned(arrays, [0, 1, 2, 3, 10, 15, *range(20, 26)], tmp_path)
    assert says.startswith("jump at row 4 from 3 to 10: 14 tokens are missing, as in a cache that was cut")
    says = warned(arrays, np.arange(40, 40 + TOKENS), tmp_path)
    assert says.startswith("begin at 40: earlier tokens are missing, as if only new ones were saved")
    assert warned(arrays, np.arange(TOKENS), tmp_path) is None


def test_files_of_ranks_are_one_sequence_once_they_are_joined_as_the_line_says(tmp_path):
    """Two ranks hold two of four query heads and one of two kv heads each."""
    draw = np.random.default_rng(0).standard_normal
    kv, q = draw((2, 3, TOKENS, 2 * 8)).astype("f4"), draw((3, TOKENS, 4 * 8)).astype("f4")
    for rank in range(2):
        np.save(tmp_path / f"kv{rank}.npy", kv[..., rank * 8 : (rank + 1) * 8])
        np.save(tmp_path / f"q{rank}.npy", q[..., rank * 16 : (rank + 1) * 16])
    names = [[tmp_path / f"{name}{rank}.npy" for rank in range(2)] for name in ("kv", "q")]
    said = []
    facts = {"sidecar": {"head_dim": 8}, "say": said.append}
    wrong = import_file(names[0], tmp_path / "wrong.h5", queries=names[1], **facts)
    assert wrong.layer(0).n_tokens == 2 * TOKENS
    (line,) = [line for line in said if line.startswith("2 files: read as consecutive tokens, 12 + 12. ")]
    assert "join such files along their last axis first, those of queries too" in line
    for name, files in zip(("kv", "q"), names, strict=True):
        np.save(tmp_path / f"{name}.npy", np.concatenate([np.load(file) for file in files], axis=-1))
    said.clear()
    trace = import_file(tmp_path / "kv.npy", tmp_path / "t.h5", queries=tmp_path / "q.npy", **facts)
    assert not any("consecutive" in line for line in said)
    layer = trace.layer(1)
    assert (layer.n_tokens, layer.q.shape[0], layer.k.shape[0]) == (TOKENS, 4, 2)
    np.testing.assert_array_equal(np.asarray(layer.k)[1], kv[0, 1, :, 8:])
    np.testing.assert_array_equal(np.asarray(layer.q)[2], q[1, :, 16:24])


def test_a_converted_file_goes_where_one_can_be_written(arrays, tmp_path, monkeypatch):
    """Sources often lie in a folder of others. Tests may run as root, who may write to it."""
    source = tmp_path / "shared/a.pt"
    source.parent.mkdir()
    torch.save({name: torch.tensor(x) for name, x in arrays.items()}, source)
    monkeypatch.setattr("kvreplay.importing.arrays.why_unwritable", lambda path: "no")
    message = refusal(source, tmp_path / "t.h5")
    assert message.endswith(f'torch.load("{source}").items()}}, "a.safetensors")')
    monkeypatch.chdir(tmp_path)
    follow(message, "import torch")
    assert import_file(tmp_path / "a.safetensors", tmp_path / "t.h5").layers() == [0, 1]


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
    if shutil.which("h5clear"):
        copy = tmp_path / "copy.h5"
        command = message[message.index("(cp ") + 1 : message.index(", of the package")]
        command = command.replace("FILE", str(file)).replace("COPY", str(copy))
        assert subprocess.run(command, shell=True, check=False).returncode == 0
        assert ": /prompts: is missing" in kvreplay("validate", copy).stderr
