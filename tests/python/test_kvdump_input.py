"""`--with-input`: the norm of the vector from which a layer projects its queries."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord.verify import verify  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_models import ARCHITECTURES, build, every_architecture, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

FLOAT32_DEVIATION = 1e-5  # float32, sums in another order
# Names of the query projection in each kind of attention module.
QUERIES = ("q_proj", "qkv_proj", "query_key_value", "c_attn")


def projections(model):
    """{layer: its query projection}."""
    found = {}
    for module in model.modules():
        for name in QUERIES:
            if hasattr(module, name) and isinstance(getattr(module, "layer_idx", None), int):
                found[module.layer_idx] = getattr(module, name)
    return found


@pytest.mark.parametrize("name", every_architecture())
def test_the_recorded_norm_is_that_of_the_vector_that_enters_the_projection_of_queries(tmp_path, name):
    model, seen = ARCHITECTURES[name].build(), {}
    with kvrecord.record(model, tmp_path / "t.h5", with_input=True):
        taps = [
            module.register_forward_pre_hook(lambda _, args, layer=layer: seen.update({layer: args[0]}))
            for layer, module in projections(model).items()
        ]
        logits(model)
        for tap in taps:
            tap.remove()
    with h5py.File(tmp_path / "t.h5") as trace:
        for layer in ARCHITECTURES[name].layers:
            found = trace[f"prompts/0/layers/{layer:03d}/resid_in_norm"]
            assert found.dtype == np.float32
            expected = seen[layer].reshape(-1, seen[layer].shape[-1]).norm(dim=-1)
            assert np.allclose(found, expected, rtol=FLOAT32_DEVIATION)


def test_a_generation_has_a_norm_for_each_row_and_verify_compares_them(tmp_path):
    model, path = build("Llama", num_key_value_heads=2), tmp_path / "t.h5"
    with kvrecord.record(model, path, with_input=True, layers=(1,)):
        generate(model)
    with h5py.File(path) as trace:
        layer = trace["prompts/0/layers/001"]
        assert layer["resid_in_norm"].shape == layer["k"].shape[1:2]
        compared = [
            check for check in verify(model, path) if "norm of what q is projected from" in check.what
        ]
        assert [check.ok for check in compared] == [True]
    with h5py.File(path, "r+") as trace:
        trace["prompts/0/layers/001/resid_in_norm"][...] *= 1.01
    assert [check.what for check in verify(model, path) if not check.ok] == [
        "layer 1: norm of what q is projected from against one full prefill"
    ]


def test_a_module_that_changes_its_input_before_projecting_is_refused(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    attention = model.model.layers[1].self_attn
    plain = attention.forward
    attention.forward = lambda hidden_states, *words, **more: plain(2 * hidden_states, *words, **more)
    assert refusal(model, tmp_path, with_input=True) == (
        "layer 1: LlamaAttention does not project its own input, so the norm of what it projects is "
        "not known: leave --with-input and --repeat out"
    )
    assert list(tmp_path.iterdir()) == []
