"""From a model to the engine: exact attention on a fresh float32 dump is the model's own output."""

import subprocess

import h5py
import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvdump  # noqa: E402
from kvreplay_cli import BINARY  # noqa: E402

pytestmark = pytest.mark.torch

FLOAT32_DEVIATION = 1e-5  # mean over heads and rows of |mine - theirs| / |theirs|


def tiny(name, **changes):
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,  # larger weights than usual, so that attention is far from uniform
    }
    torch.manual_seed(0)
    config = getattr(transformers, name + "Config")(**sizes | changes)
    return getattr(transformers, name + "ForCausalLM")(config).eval()


@pytest.mark.parametrize("name,changes", [("Llama", {}), ("Mistral", {"sliding_window": 7})])
def test_exact_attention_is_the_models_own_output(tmp_path, name, changes):
    trace, out = tmp_path / "t.h5", tmp_path / "out"
    model = tiny(name, **changes)
    with kvdump.record(model, trace, dtype="f32", out_layers=(0, 1)), torch.no_grad():
        model(input_ids=torch.arange(3, 43)[None] % 61, use_cache=False)
    command = [BINARY, "run", trace, "--method", "exact", "--prefill", "1", "-o", out]
    done = subprocess.run(
        [*command, "-s", "output.save=[outputs]", "--progress", "none"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(out / "results.csv").sort_values(["layer", "kv_head"])
    with h5py.File(out / "outputs.h5") as mine, h5py.File(trace) as dump:
        (prompt,) = dump["prompts"].values()
        for layer, heads in rows.groupby("layer"):
            theirs = prompt[f"layers/{layer:03d}/out"][:, 1:]
            ours = np.concatenate([mine[key]["out"][:] for key in heads.key])
            deviation = np.linalg.norm(ours - theirs, axis=2) / np.linalg.norm(theirs, axis=2)
            assert deviation.mean() <= FLOAT32_DEVIATION
