"""The recording of each architecture, against values worked out by hand."""

import json
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord.attention import exact_attention, mean_relative_deviation  # noqa: E402
from kvrecord.hook import AttentionHook, base_attention, base_implementation  # noqa: E402
from kvrecord.verify import attend_stored, verify  # noqa: E402
from tiny_models import (  # noqa: E402
    ARCHITECTURES,
    GENERATED,
    PROMPT,
    generate,
    logits,
)

pytestmark = pytest.mark.torch

FLOAT32_DEVIATION = 1e-5  # float32, sums in another order
MATTERS = 0.01  # smallest change of the output when a feature is left out
ROWS = PROMPT.shape[1] + GENERATED - 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """recorded(name): a model, its tokens, and open traces of a generation and of one full prefill."""
    folder = tmp_path_factory.mktemp("traces")
    made = {}

    def record(name):
        if name not in made:
            made[name] = _record(ARCHITECTURES[name], folder / str(len(made)))
        return made[name]

    yield record
    for one in made.values():
        one.generated.close()
        one.prefilled.close()


def _record(architecture, stem):
    model = architecture.build()
    with base_attention(model):
        plain = generate(model), logits(model)
    paths = [stem.with_suffix(kind) for kind in (".generated.h5", ".prefilled.h5")]
    out_layers = tuple(architecture.layers)
    with kvrecord.record(model, paths[0], out_layers=out_layers):
        tokens = generate(model)
    with kvrecord.record(model, paths[1], out_layers=out_layers):
        logits(model, tokens[:, :-1])
    generated, prefilled = map(h5py.File, paths)
    return SimpleNamespace(
        model=model,
        layers=architecture.layers,
        plain=plain,
        tokens=tokens,
        path=paths[0],
        generated=generated,
        prefilled=prefilled,
    )


def layers_of(one, trace):
    """(layer, expected values, group of the trace) of every layer in the table."""
    for layer, expected in one.layers.items():
        yield layer, expected, trace[f"prompts/0/layers/{layer:03d}"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_hook_changes_neither_tokens_nor_logits(recorded, name):
    one = recorded(name)
    tokens, before = one.plain
    assert torch.equal(one.tokens, tokens)
    with AttentionHook(one.model, lambda call: None):
        assert torch.equal(logits(one.model), before)
        assert torch.equal(generate(one.model), tokens)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_hook_calls_the_models_implementation_unless_it_omits_a_feature(recorded, name):
    one = recorded(name)
    incomplete = any(layer.softcap or layer.sinks for layer in one.layers.values())
    assert base_implementation(one.model) == (
        "eager" if incomplete else one.model.config._attn_implementation
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_of_a_generation_are_those_of_one_full_prefill(recorded, name):
    one = recorded(name)
    assert np.array_equal(one.generated["prompts/0/tokens"], one.tokens[0, :-1])
    for layer, expected, group in layers_of(one, one.generated):
        q_heads, kv_heads, dim, v_dim = expected.heads
        shapes = {"q": (q_heads, ROWS, dim), "k": (kv_heads, ROWS, dim), "v": (kv_heads, ROWS, v_dim)}
        for tensor, shape in shapes.items():
            prefilled = one.prefilled[f"prompts/0/layers/{layer:03d}/{tensor}"][...]
            assert group[tensor].shape == shape
            assert mean_relative_deviation(group[tensor][...], prefilled) < FLOAT32_DEVIATION


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_attention_recomputed_from_the_trace_equals_the_layers_output(recorded, name):
    one = recorded(name)
    for trace in (one.generated, one.prefilled):
        for _, expected, group in layers_of(one, trace):
            assert group["out"].shape == (expected.heads[0], ROWS, expected.heads[3])
            assert mean_relative_deviation(attend_stored(group), group["out"][...]) < FLOAT32_DEVIATION


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_recomputed_attention_misses_the_output_when_a_feature_is_left_out(recorded, name):
    one = recorded(name)
    for layer, expected, group in layers_of(one, one.prefilled):
        for feature, without in _left_out(expected, group).items():
            q, k, v = without.pop("qkv", [group[x][...] for x in "qkv"])
            told = _features(expected, group) | without
            found = exact_attention(q, k, v, np.arange(ROWS), **told)
            assert mean_relative_deviation(found, group["out"][...]) > MATTERS, (layer, feature)


def _features(expected, group):
    return {
        "scaling": expected.scaling,
        "sliding_window": expected.window,
        "chunk": expected.chunk,
        "softcap": expected.softcap,
        "sinks": group["sinks"][...] if expected.sinks else None,
    }


def _left_out(expected, group):
    """{feature: arguments of exact_attention without it} for the features of a layer."""
    q, k, v = (group[x][...] for x in "qkv")
    usual = expected.heads[2] ** -0.5
    causal = np.roll(v, 1, axis=1)
    cases = {
        "window": ({"sliding_window": 0}, expected.window),
        "chunk": ({"chunk": 0}, expected.chunk),
        "a chunk as a window": ({"chunk": 0, "sliding_window": expected.chunk}, expected.chunk),
        "softcap": ({"softcap": 0.0}, expected.softcap),
        "sinks": ({"sinks": None}, expected.sinks),
        "its own scale": ({"scaling": usual}, expected.scaling != usual),
        "any scale": ({"scaling": 2 * expected.scaling}, True),
        "order of kv heads": ({"qkv": (q, k[::-1], v[::-1])}, expected.heads[1] > 1),
        "order of rows": ({"qkv": (q, k, causal)}, True),
    }
    return {feature: without for feature, (without, there) in cases.items() if there}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_attributes_are_those_worked_out_by_hand(recorded, name):
    one = recorded(name)
    root = one.generated.attrs
    assert list(one.generated["prompts/0/layers"]) == [f"{layer:03d}" for layer in one.layers]
    first = next(iter(one.layers.values()))
    assert tuple(root[x] for x in ("n_q_heads", "n_kv_heads", "head_dim", "v_head_dim")) == first.heads
    for _, expected, group in layers_of(one, one.generated):
        attributes = dict(group.attrs)
        rope = attributes.pop("rope_json", None) or root.get("rope_json")
        assert attributes == {
            "scaling": pytest.approx(expected.scaling, rel=1e-12),
            "sliding_window": expected.window,
            **({"attention_chunk": expected.chunk} if expected.chunk else {}),
            "softcap": expected.softcap,
            "rotary_dims": expected.rope.dims if expected.rope else 0,
            "rope": "post" if expected.rope else "none",
            "q_prescaled": expected.q_prescaled,
            "source_dtype": "float32",
        }
        assert ("sinks" in group) == expected.sinks
        if expected.rope:
            check_rope(json.loads(rope), expected.rope)


def check_rope(found, expected):
    assert found.pop("inv_freq") == pytest.approx(list(expected.inv_freq), rel=1e-6)
    assert found == {
        "type": expected.type,
        "theta": expected.theta,
        "attention_factor": pytest.approx(expected.attention_factor, rel=1e-6),
        "layout": expected.layout,
        "rotary_dims": expected.dims,
    }


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_recorded_keys_and_queries_are_the_projections_turned_by_the_recorded_table(recorded, name):
    one = recorded(name)
    bare = unturned(one.model, one.tokens[:, :-1])
    for layer, _, group in layers_of(one, one.prefilled):
        rope = json.loads(group.attrs.get("rope_json", one.prefilled.attrs.get("rope_json", "null")))
        for tensor in "qk":
            projected, stored = bare[layer][tensor], group[tensor][...]
            if group.attrs["rope"] == "none":
                assert np.array_equal(projected, stored)
                continue
            assert mean_relative_deviation(turned(projected, rope), stored) < FLOAT32_DEVIATION
            assert mean_relative_deviation(projected, stored) > MATTERS
            other = "interleaved" if rope["layout"] == "half_split" else "half_split"
            if rope["rotary_dims"] > 2:  # with one pair both layouts are equal
                assert mean_relative_deviation(turned(projected, rope | {"layout": other}), stored) > MATTERS


def unturned(model, ids):
    """{layer: {"q": ..., "k": ...}} as made by each attention module without rotation.

    Every module receives its input from one prefill, with cosines 1 and sines 0.
    """
    inputs, found = [], {}
    attention = [m for m in model.modules() if isinstance(getattr(m, "layer_idx", None), int)]
    attention = [m for m in attention if type(m).__name__.endswith("Attention")]
    taps = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: inputs.append((module, args, kwargs)), with_kwargs=True
        )
        for module in attention
    ]
    with base_attention(model):
        logits(model, ids)
    for tap in taps:
        tap.remove()
    with AttentionHook(model, lambda call: found.update({call.layer: call})), torch.no_grad():
        for module, args, kwargs in inputs:
            if kwargs.get("position_embeddings") is not None:
                kwargs["position_embeddings"] = at_rest(kwargs["position_embeddings"])
            module(*args, **kwargs)
    return {layer: {"q": call.q.numpy(), "k": call.k.numpy()} for layer, call in found.items()}


def at_rest(table):
    """A table of rotations that turn nothing: complex numbers, or cosines and sines in either order."""
    if torch.is_tensor(table):
        return torch.ones_like(table)
    # The sines of position 0 are 0.
    return [torch.full_like(x, float(x[:, 0].all())) for x in table]


def turned(x, rope):
    """x [heads, T, D] rotated by a rope_json, pair by pair as complex numbers."""
    dims = rope["rotary_dims"]
    order = np.arange(dims)
    first, second = np.split(order, 2) if rope["layout"] == "half_split" else (order[::2], order[1::2])
    angles = np.arange(x.shape[1])[:, None] * np.array(rope["inv_freq"])
    spun = (x[..., first] + 1j * x[..., second]) * rope["attention_factor"] * np.exp(1j * angles)
    result = x.astype(np.float64)
    result[..., first], result[..., second] = spun.real, spun.imag
    return result


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_verify_agrees(recorded, name):
    one = recorded(name)
    checks = verify(one.model, one.path)
    assert [str(check) for check in checks if not check.ok] == []
    assert len(checks) == 1 + 3 * len(one.layers)


def test_the_matrix_has_groups_of_1_2_4_and_8_query_heads():
    groups = {a.heads[0] // a.heads[1] for x in ARCHITECTURES.values() for a in x.layers.values()}
    assert groups >= {1, 2, 4, 8}
