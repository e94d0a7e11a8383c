"""`with_output`: the attention's contribution to the residual stream, for every layout of blocks."""

import functools
import re

import h5py
import numpy as np
import pytest
from kvbase.errors import KvreplayError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord.attention import mean_relative_deviation  # noqa: E402
from kvrecord.residual import attention_of, blocks_of  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_models import ARCHITECTURES, build, every_architecture, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

FLOAT32_DEVIATION = 1e-5  # float32, sums in another order
MATTERS = 0.01
GATED = [name for name, architecture in ARCHITECTURES.items() if architecture.gated]
ENDS_WITH_A_NORM = "opt, norms after the sums"
# Contribution of the attention output a in each block, written by hand; all other blocks add a itself.
ADDED = {
    "gemma 2, softcap and own scale": lambda block, a: block.post_attention_layernorm(a),
    "gemma 3, two thetas": lambda block, a: block.post_attention_layernorm(a),
    "olmo 2, norm behind the attention": lambda block, a: block.post_attention_layernorm(a),
    "granite, multipliers": lambda block, a: 0.6 * a,
}


PARALLEL = [name for name in ARCHITECTURES if "parallel" in name]


def loud(model):
    """The model in bf16, with embeddings so large that sums round away much of each contribution."""
    model.get_input_embeddings().weight.data *= 300
    return model.to(torch.bfloat16)


def recorded_with_output(name, path, change=lambda model: model):
    """Records a prefill to `path`; returns {layer: (block, block's input, attention's output)}."""
    model, seen = change(ARCHITECTURES[name].build()), {}

    def on_block(layer, block, args, kwargs):
        seen[layer] = [block, args[0] if args else kwargs["hidden_states"]]

    with kvrecord.record(model, path, with_output=True):
        taps = []
        for layer, block in blocks_of(model, ARCHITECTURES[name].layers):
            taps += [
                block.register_forward_pre_hook(
                    lambda block, args, kwargs, layer=layer: on_block(layer, block, args, kwargs),
                    with_kwargs=True,
                ),
                attention_of(block).register_forward_hook(
                    lambda module, args, output, layer=layer: seen[layer].append(output[0])
                ),
            ]
        logits(model)
        for tap in taps:
            tap.remove()
    return seen


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """recorded(name): (inputs and outputs by layer, trace) of an architecture, recorded once each."""

    @functools.cache
    def of(name):
        path = tmp_path_factory.mktemp("recorded") / "t.h5"
        return recorded_with_output(name, path), path

    return of


@pytest.mark.parametrize("name", every_architecture())
def test_the_recorded_projection_of_the_output_is_what_the_attention_module_returns(recorded, name):
    seen, path = recorded(name)
    with h5py.File(path) as trace:
        for layer, (block, _, attention) in seen.items():
            group = trace[f"prompts/0/layers/{layer:03d}"]
            attention = attention[0].numpy()
            assert ("out_gate" in group) == (name in GATED)
            gate = group["out_gate"][...] if name in GATED else 1
            projected = np.einsum("htd,hdc->tc", group["out"][...] * gate, group["o_proj"][...])
            names = ("o_proj", "out_proj", "dense", "c_proj")
            (projection,) = [m for n, m in attention_of(block).named_children() if n in names]
            bias = getattr(projection, "bias", None)
            if bias is not None:
                assert mean_relative_deviation(projected, attention) > MATTERS
                projected = projected + bias.detach().numpy()
            assert mean_relative_deviation(projected, attention) < FLOAT32_DEVIATION


@pytest.mark.parametrize("name", every_architecture())
def test_the_recorded_norm_is_that_of_the_stream_behind_the_attention(recorded, name):
    seen, path = recorded(name)
    added = ADDED.get(name, lambda block, a: a)
    with h5py.File(path) as trace, torch.no_grad():
        for layer, (block, before, attention) in seen.items():
            found = trace[f"prompts/0/layers/{layer:03d}/resid_norm"]
            expected = (before + added(block, attention))[0].norm(dim=-1)
            assert found.dtype == np.float32
            assert np.allclose(found, expected, rtol=FLOAT32_DEVIATION)


@pytest.mark.parametrize("name", PARALLEL)
def test_a_large_stream_in_16_bits_hides_no_layout(tmp_path, name):
    seen = recorded_with_output(name, tmp_path / "t.h5", loud)
    with h5py.File(tmp_path / "t.h5") as trace, torch.no_grad():
        for layer, (_, before, attention) in seen.items():
            found = trace[f"prompts/0/layers/{layer:03d}/resid_norm"]
            expected = (before.double() + attention.double())[0].norm(dim=-1)
            assert np.allclose(found, expected, rtol=2**-7)


@pytest.mark.parametrize("name", every_architecture(ENDS_WITH_A_NORM))
def test_every_block_hands_on_the_stream_that_was_recorded(tmp_path, name):
    """Sequential and parallel blocks both add the feed-forward part to the recorded stream. A block's output
    minus its feed-forward part therefore has the recorded norm, in every layout."""
    model, ends = ARCHITECTURES[name].build(), {}
    with kvrecord.record(model, tmp_path / "t.h5", with_output=True):
        for layer, block in blocks_of(model, ARCHITECTURES[name].layers):
            ends[layer] = {}
            last = feed_forward_end(block)
            last.register_forward_hook(lambda m, a, out, e=ends[layer]: e.update(fed=out))
            block.register_forward_hook(lambda m, a, out, e=ends[layer]: e.update(out=out))
        logits(model)
    factor = 0.6 if name == "granite, multipliers" else 1
    with h5py.File(tmp_path / "t.h5") as trace:
        for layer, end in ends.items():
            out, fed = (x[0] if isinstance(x, tuple) else x for x in (end["out"], end["fed"]))
            before = (out - factor * fed.reshape(out.shape))[0].norm(dim=-1).detach()
            assert np.allclose(trace[f"prompts/0/layers/{layer:03d}/resid_norm"], before, rtol=1e-4)


def feed_forward_end(block):
    """The module whose output is the block's feed-forward part."""
    names = ("post_feedforward_layernorm", "mlp", "feed_forward", "fc2")
    return next(getattr(block, name) for name in names if hasattr(block, name))


@pytest.mark.parametrize("name", every_architecture())
def test_a_generation_gives_the_norms_of_a_prefill(tmp_path, name):
    model = ARCHITECTURES[name].build()
    with kvrecord.record(model, tmp_path / "g.h5", with_output=True):
        tokens = generate(model)
    with kvrecord.record(model, tmp_path / "p.h5", with_output=True):
        logits(model, tokens[:, :-1])
    with h5py.File(tmp_path / "g.h5") as generated, h5py.File(tmp_path / "p.h5") as prefilled:
        for layer in ARCHITECTURES[name].layers:
            norms = (t[f"prompts/0/layers/{layer:03d}/resid_norm"][...] for t in (generated, prefilled))
            assert np.allclose(*norms, rtol=1e-4)


@pytest.mark.parametrize("name", GATED)
def test_a_gate_is_a_factor_of_each_number_and_does_not_depend_on_the_output(tmp_path, name):
    """The gates of Qwen3-Next are sigmoids of the input, so they stay when outputs become others."""
    model = ARCHITECTURES[name].build()
    with kvrecord.record(model, tmp_path / "t.h5", with_output=True, query_stride=3):
        tokens = generate(model)
    with h5py.File(tmp_path / "t.h5") as trace:
        group = trace["prompts/0/layers/003"]
        assert group["out_gate"].shape == group["out"].shape
        attention = model.model.layers[3].self_attn
        seen = {}
        with torch.no_grad():
            taps = [
                attention.register_forward_pre_hook(
                    lambda m, a, k: seen.update(x=a[0] if a else k["hidden_states"]), with_kwargs=True
                )
            ]
            logits(model, tokens[:, :-1])
            taps[0].remove()
            both = attention.q_proj(seen["x"]).unflatten(-1, (4, -1))  # queries and gates of each head
        expected = both.chunk(2, dim=-1)[1].sigmoid()[0].transpose(0, 1)[:, ::3]
        assert np.allclose(group["out_gate"][...], expected, rtol=1e-3, atol=1e-5)


def normalise_before_the_projection(block):
    block.self_attn.o_proj.register_forward_pre_hook(
        lambda m, args: (args[0] / args[0].norm(dim=-1, keepdim=True),)
    )


def mix_before_the_projection(block):
    block.self_attn.o_proj.register_forward_pre_hook(lambda m, args: (args[0].flip(-1),))


def halve_the_projection(block):
    block.self_attn.o_proj = Halved(block.self_attn.o_proj)


def claim_a_factor(block):
    block.residual_multiplier = 0.5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (halve_the_projection, "LlamaAttention changes its output"),
        (normalise_before_the_projection, "LlamaAttention changes its output"),
        (mix_before_the_projection, "in a way that is no gate"),
        (claim_a_factor, "layer 1: the layout of LlamaDecoderLayer is unknown to the recorder"),
    ],
)
def test_a_block_whose_sum_contradicts_its_names_is_refused(tmp_path, change, says):
    model = build("Llama", num_key_value_heads=2)
    change(model.model.layers[1])
    assert says in refused_output(model, tmp_path)


@pytest.mark.parametrize(
    "name", [*PARALLEL, "llama", "granite, multipliers", "olmo 2, norm behind the attention"]
)
def test_a_wrong_layout_is_refused_however_large_the_stream(tmp_path, monkeypatch, name):
    """Claims half of the sum, where rounding of the stream would hide the other half."""
    monkeypatch.setattr("kvrecord.residual.joining", lambda block: lambda out: out * 0.5)
    assert "is unknown to the recorder" in refused_output(loud(ARCHITECTURES[name].build()), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_attention_that_adds_nothing_is_recorded(tmp_path, dtype):
    model = build("Llama", num_key_value_heads=2)
    model.model.layers[1].self_attn.o_proj.weight.data.zero_()
    with kvrecord.record(model.to(dtype), tmp_path / "t.h5", with_output=True):
        logits(model)


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_a_check_that_fails_on_its_way_leaves_no_listener(tmp_path, monkeypatch):
    model, made = build("Llama", num_key_value_heads=2), []

    def second_fails(block):
        made.append(block)
        if len(made) == 2:
            raise KvreplayError("no")
        return lambda out: out

    monkeypatch.setattr("kvrecord.residual.joining", second_fails)
    with pytest.raises(KvreplayError), kvrecord.record(model, tmp_path / "t.h5", with_output=True):
        pass
    assert hooks(model) == 0


@pytest.mark.parametrize("result", [None, {}, [], [None]])
def test_a_part_may_return_something_other_than_a_tensor(tmp_path, result):
    model = build("Llama", num_key_value_heads=2)
    block = model.model.layers[0]
    block.extra = Gives(result)
    block.self_attn.register_forward_hook(lambda module, args, output: [block.extra(output), None][1])
    with kvrecord.record(model, tmp_path / "t.h5", with_output=True):
        logits(model)


@pytest.mark.parametrize(
    "weight", [torch.zeros(512, 1, dtype=torch.uint8), torch.zeros(32, 32, dtype=torch.int8)]
)
def test_quantised_weights_of_a_projection_are_refused(tmp_path, weight):
    model = build("Llama", num_key_value_heads=2)
    attention = model.model.layers[1].self_attn
    attention.o_proj = Packed(attention.o_proj, weight)
    assert "Packed does not store its weights" in refused_output(model, tmp_path)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("PROJECTION_NAMES", "LlamaAttention has no output projection that the recorder knows"),
        ("ATTENTION_NAMES", "layer 0: the layout of LlamaForCausalLM is unknown to the recorder"),
    ],
)
def test_parts_with_unknown_names_are_refused(tmp_path, monkeypatch, names, says):
    monkeypatch.setattr(f"kvrecord.residual.{names}", ())
    assert says in refused_output(build("Llama", num_key_value_heads=2), tmp_path)


def refused_output(model, folder):
    """The message with which `with_output` refuses a model; nothing is written."""
    says = refusal(model, folder, with_output=True)
    assert re.fullmatch(r"--with-output: .*use --out-layers", says)
    assert list(folder.iterdir()) == []
    return says


class Halved(torch.nn.Module):
    """Returns half of the wrapped module's output."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.weight = inner.weight

    def forward(self, x):
        return self.inner(x) / 2


class Packed(torch.nn.Module):
    """The wrapped module with weights as in a quantised module."""

    def __init__(self, inner, weight):
        super().__init__()
        self.inner = inner
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return self.inner(x)


class Gives(torch.nn.Module):
    """Returns a fixed output for any input."""

    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, x):
        return self.result
