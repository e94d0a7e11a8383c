"""From a model to the engine: exact attention on a new float32 recording equals the model's output."""

import h5py
import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvreplay_cli import kvreplay  # noqa: E402
from tiny_models import ARCHITECTURES, PROMPT, generate  # noqa: E402

pytestmark = pytest.mark.torch

FLOAT32_DEVIATION = 1e-5  # mean over heads and rows of |mine - theirs| / |theirs|


def replayed(trace, out):
    """{layer: (outputs [Hq, R, Dv], their rows)} of exact attention after the first token."""
    words = ["run", trace, "--method", "exact", "--prefill", "1", "-o", out, "--progress", "none"]
    done = kvreplay(*words, "-s", "output.save=[outputs]")
    assert done.returncode == 0, done.stderr
    cells = pd.read_csv(out / "results.csv").sort_values(["layer", "kv_head"])
    with h5py.File(out / "outputs.h5") as file:
        return {
            int(layer): (
                np.concatenate([file[key]["out"][...] for key in heads.key]),
                file[heads.key.iloc[0]]["rows"][...],
            )
            for layer, heads in cells.groupby("layer")
        }


@pytest.mark.parametrize("stride", [1, 3], ids=["every query", "every third query"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact_attention_is_the_models_own_output(tmp_path, name, stride):
    layers = ARCHITECTURES[name].layers
    model = ARCHITECTURES[name].build()
    options = {"dtype": "f32", "out_layers": tuple(layers), "query_stride": stride}
    with kvrecord.record(model, tmp_path / "t.h5", **options):
        generate(model)
    found = replayed(tmp_path / "t.h5", tmp_path / "out")
    assert found.keys() == layers.keys()
    with h5py.File(tmp_path / "t.h5") as trace:
        for layer, (ours, rows) in found.items():
            group = trace[f"prompts/0/layers/{layer:03d}"]
            recorded = group["q_pos"][...] if "q_pos" in group else np.arange(group["k"].shape[1])
            behind = recorded >= 1
            assert np.array_equal(rows, recorded[behind])
            theirs = group["out"][...][:, behind]
            assert ours.shape == theirs.shape
            deviation = np.linalg.norm(ours - theirs, axis=2) / np.linalg.norm(theirs, axis=2)
            assert deviation.mean() <= FLOAT32_DEVIATION, layer


def test_a_directory_is_replayed_through_its_index(tmp_path):
    model = ARCHITECTURES["gemma 3, two thetas"].build()
    for output in ("dir", "one.h5"):
        with kvrecord.record(model, tmp_path / output, dtype="f32"):
            generate(model)
    through_links = replayed(tmp_path / "dir" / "index.h5", tmp_path / "links")
    alone = replayed(tmp_path / "one.h5", tmp_path / "alone")
    assert all(np.array_equal(through_links[layer][0], alone[layer][0]) for layer in alone)
    assert len(alone) == 3


def test_a_trace_of_token_ids_and_a_loaded_model_is_replayed(tmp_path):
    model = ARCHITECTURES["gemma 3, two thetas"].build()
    path = kvrecord.record_texts(model, [PROMPT[0].tolist()], tmp_path / "t.h5", layers="every:2", generate=4)
    assert kvreplay("validate", path, "--deep").returncode == 0
    found = replayed(path, tmp_path / "out")
    assert {layer: out.shape for layer, (out, _) in found.items()} == {0: (4, 26, 8), 2: (4, 26, 8)}
