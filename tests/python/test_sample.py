"""The real sample trace: its contents, and its exact attention against independent computations."""

import os
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("KVREPLAY", str(ROOT / "build/release/kvreplay"))
SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
LAYERS = (0, 3, 7, 11, 15, 18, 21, 23, 26, 29)
DECODE_FROM = 1  # score every row but the first
FLOAT32 = 1e-5  # relative to the largest magnitude: the precision of float32 logits up to 100
STORED_BF16 = 1e-2  # the model ran in float32, q, k, v and out are stored with 8 bits


def widened(dataset):
    """Converts raw bfloat16 bits to float64, exactly."""
    raw = np.empty(dataset.shape, np.uint16)
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, dataset.id.get_type())
    return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """{(layer, kv head): exact outputs of the engine [G, rows, Dv]} and the rows."""
    out = tmp_path_factory.mktemp("exact")
    command = [BINARY, "run", SAMPLE, "--method", "exact", "--prefill", str(DECODE_FROM), "-o", out]
    command += ["-s", "output.save=[outputs]", "--progress", "none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(out / "results.csv")
    with h5py.File(out / "outputs.h5") as f:
        return {(r.layer, r.kv_head): f[r.key]["out"][:] for r in rows.itertuples()}


def layer_group(f, layer):
    (prompt,) = f["prompts"].values()
    return prompt[f"layers/{layer:03d}"]


def test_the_sample_matches_its_readme():
    assert SAMPLE.stat().st_size <= 12e6
    with h5py.File(SAMPLE) as f:
        (prompt,) = f["prompts"].values()
        assert tuple(int(x) for x in prompt["layers"]) == LAYERS
        assert prompt["tokens"].shape == (704,)
        n_prompt, n_generated = int(prompt.attrs["n_prompt"]), int(prompt.attrs["n_generated"])
        assert (n_prompt, n_generated) == (640, 64)
        for layer in LAYERS:
            g = layer_group(f, layer)
            assert g["q"].shape == (9, 704, 64)
            assert g["k"].shape == g["v"].shape == (3, 704, 64)
        assert "out" in layer_group(f, 0)


@pytest.mark.parametrize("layer", LAYERS)
def test_exact_attention_agrees_with_float64(exact, layer):
    with h5py.File(SAMPLE) as f:
        g = layer_group(f, layer)
        q, k, v = (widened(g[name]) for name in "qkv")
        scaling = float(g.attrs["scaling"])
    for head in range(q.shape[0]):
        logits = scaling * q[head] @ k[head // 3].T
        logits[np.triu_indices(logits.shape[1], 1)] = -np.inf
        p = np.exp(logits - logits.max(1, keepdims=True))
        expected = (p / p.sum(1, keepdims=True) @ v[head // 3])[DECODE_FROM:]
        mine = exact[layer, head // 3][head % 3]
        assert np.abs(mine - expected).max() <= FLOAT32 * np.abs(expected).max()


def test_exact_attention_agrees_with_the_models_own_output(exact):
    with h5py.File(SAMPLE) as f:
        out = layer_group(f, 0)["out"]
        theirs = (
            out[:].astype(float) if out.dtype.kind == "f" and out.dtype.itemsize == 4 else widened(out)
        )[:, DECODE_FROM:]
    mine = np.concatenate([exact[0, h] for h in range(3)])
    deviation = np.linalg.norm(mine - theirs, axis=2) / np.linalg.norm(theirs, axis=2)
    assert deviation.mean() <= STORED_BF16


@pytest.mark.torch
@pytest.mark.parametrize("layer", LAYERS)
def test_exact_attention_agrees_with_torch(exact, layer):
    torch = pytest.importorskip("torch")
    with h5py.File(SAMPLE) as f:
        g = layer_group(f, layer)
        q, k, v = (torch.from_numpy(widened(g[name]).astype(np.float32)) for name in "qkv")
        scaling = float(g.attrs["scaling"])
    k, v = k.repeat_interleave(3, 0), v.repeat_interleave(3, 0)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True, scale=scaling
    )
    theirs = theirs[0, :, DECODE_FROM:].numpy()
    mine = np.concatenate([exact[layer, h] for h in range(3)])
    assert np.abs(mine - theirs).max() <= FLOAT32 * np.abs(theirs).max()
