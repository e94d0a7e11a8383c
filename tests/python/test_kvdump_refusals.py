"""Models that the recorder refuses because a trace would misrepresent them."""

import h5py
import numpy as np
import pytest
from kvbase.errors import KvreplayError, KvreplayWarning

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvrecord  # noqa: E402
import kvtrace.trace  # noqa: E402
from kvrecord import facts, hook  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_models import ARCHITECTURES, PROMPT, SILENT, build, generate, logits, silent  # noqa: E402

pytestmark = pytest.mark.torch


def unknown_rotation(model, folder):
    """The warning with which a model is recorded whose rotation a trace cannot say."""
    with pytest.warns(KvreplayWarning) as warned, kvrecord.record(model, folder / "t.h5"):
        logits(model)
    with h5py.File(folder / "t.h5") as file:
        layers = file["prompts/0/layers"]
        assert all(layers[name].attrs["rope"] == "unknown" for name in layers)
    layer = kvtrace.trace.Trace(folder / "t.h5").layer(0)
    assert layer.rope is None and not layer.rope_recorded
    return str(warned[0].message)


@pytest.mark.parametrize("prefix", SILENT)
def test_a_model_that_never_calls_the_attention_interface_is_refused_by_its_name(tmp_path, prefix):
    model = build(prefix, **silent(prefix))
    says = refusal(model, tmp_path, logits)
    assert says.startswith(f"{prefix}ForCausalLM never calls the attention interface of transformers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["llama", "mistral, windows", "gemma 2, softcap and own scale"])
def test_a_generation_without_a_cache_starts_over_and_is_refused(tmp_path, name):
    says = refusal(ARCHITECTURES[name].build(), tmp_path, lambda m: generate(m, use_cache=False))
    assert says.startswith("layer 0, ")
    assert says.endswith("the model read all 25 tokens again: use a cache (use_cache=True)")


@pytest.mark.parametrize("name", ["llama", "gemma 2, softcap and own scale"])
def test_a_static_cache_is_refused(tmp_path, name):
    def run(model):
        generate(model, cache_implementation="static")

    assert "a static cache, virtual tokens (prefix tuning), or a cache" in refusal(
        ARCHITECTURES[name].build(), tmp_path, run
    )


def test_a_full_static_cache_of_windows_holds_no_padding(tmp_path):
    model = ARCHITECTURES["mistral, windows"].build()
    for file, cache in (("static.h5", "static"), ("dynamic.h5", "dynamic")):
        with kvrecord.record(model, tmp_path / file):
            generate(model, cache_implementation=cache)
    with h5py.File(tmp_path / "static.h5") as static, h5py.File(tmp_path / "dynamic.h5") as dynamic:
        for name in ("000/q", "000/k", "001/v"):
            rows = (trace[f"prompts/0/layers/{name}"][...] for trace in (static, dynamic))
            assert np.allclose(*rows, rtol=1e-4, atol=1e-5)
    short = PROMPT[:, :3]
    says = refusal(model, tmp_path / "short", lambda m: generate(m, ids=short, cache_implementation="static"))
    assert "a static cache" in says


@pytest.mark.parametrize(
    ("prefix", "changes"),
    [
        ("GPT2", {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.1}),
        ("Llama", {"attention_dropout": 0.1}),
    ],
)
def test_dropout_at_work_is_refused(tmp_path, prefix, changes):
    model = build(prefix, **changes).train()
    with pytest.raises(KvreplayError) as refused, kvrecord.record(model, tmp_path / "t.h5"):
        logits(model)
    assert "is in training mode, so dropout would change what is recorded: call model.eval()" in str(
        refused.value
    )
    assert list(tmp_path.iterdir()) == []
    with kvrecord.record(model.eval(), tmp_path / "t.h5"):
        logits(model)


def test_a_model_in_training_mode_that_drops_nothing_is_recorded(tmp_path):
    model = build("GPT2", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0).train()
    with kvrecord.record(model, tmp_path / "t.h5"):
        logits(model)


def test_embeddings_instead_of_tokens_are_refused(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    embedded = model.get_input_embeddings()(PROMPT)
    assert "needs input_ids" in refusal(model, tmp_path, lambda m: m(inputs_embeds=embedded))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_that_are_turned_by_no_known_table_are_recorded_with_an_unknown_rotation(tmp_path, dtype):
    model = build("Llama", num_key_value_heads=2)
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary._buffers.pop("inv_freq").clone()
    says = unknown_rotation(model.to(dtype), tmp_path)
    assert "keys turn with their position, but the model has no table of frequencies" in says


def test_positions_that_a_model_adds_to_its_tokens_turn_no_keys(tmp_path):
    for name in ("gpt-2, no rotation", "opt, queries scaled before"):
        assert facts.turned_by_no_table(ARCHITECTURES[name].build().to(torch.bfloat16)) == {}


def model_with_later_keys():
    """A model whose queries see later keys; skips if the release has none."""
    if not hasattr(transformers.Gemma3TextConfig(), "use_bidirectional_attention"):
        pytest.skip("Gemma3Text sees later keys only from 4.57 on")
    sizes = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64}
    return build("Gemma3Text", use_bidirectional_attention=True, **sizes)


def test_attention_that_a_trace_cannot_describe_is_refused(tmp_path):
    """With keys after the query, the rows are recorded correctly, but causal attention over them differs."""
    assert "does more than a trace can record" in refusal(model_with_later_keys(), tmp_path, logits)


def test_chunks_of_another_size_than_the_model_attends_in_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hook, "_chunk_of", lambda module: 8)
    says = refusal(ARCHITECTURES["llama 4, chunks"].build(), tmp_path, logits)
    assert says.startswith("layer 0: Llama4TextAttention does more than a trace can record (a sparse mask")


def model_with_large_logits(implementation, size, seed):
    """A valid bf16 Qwen2 whose query and key biases make large logits, which eager attention rounds."""
    model = build("Qwen2", num_key_value_heads=2)
    model.set_attn_implementation(implementation)
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        for projection, scale in ((layer.self_attn.q_proj, 1.0), (layer.self_attn.k_proj, size / 3)):
            drawn = torch.randn(projection.bias.shape, generator=generator)
            projection.bias.data = drawn * scale
    return model.to(torch.bfloat16)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("size", "seed"), [(30, 5), (60, 5), (200, 1), (200, 4)])
def test_large_logits_that_are_rounded_to_16_bits_are_recorded(tmp_path, implementation, size, seed):
    model = model_with_large_logits(implementation, size, seed)
    with kvrecord.record(model, tmp_path / "t.h5"):
        logits(model)


@pytest.mark.parametrize("size", [1, 30])
def test_a_mask_that_a_trace_cannot_describe_is_refused_in_16_bits_too(tmp_path, size):
    """Chunks of 8 that the attention call does not mention."""
    model = model_with_large_logits("eager", size, seed=5)
    plain = model.model.layers[0].self_attn.forward

    def chunked(*args, attention_mask=None, **kwargs):
        chunk = torch.arange(args[0].shape[1] if args else kwargs["hidden_states"].shape[1]) // 8
        other = chunk[:, None] != chunk[None, :]
        mask = torch.triu(torch.ones(other.shape, dtype=torch.bool), 1) | other
        hidden = torch.finfo(torch.bfloat16).min * mask.to(torch.bfloat16)
        return plain(*args, attention_mask=hidden[None, None], **kwargs)

    model.model.layers[0].self_attn.forward = chunked
    assert "does more than a trace can record" in refusal(model, tmp_path, logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_keys_ahead_are_refused_in_16_bits_too(tmp_path, dtype):
    assert "does more than a trace can record" in refusal(model_with_later_keys().to(dtype), tmp_path, logits)


def test_a_refused_recording_with_output_leaves_no_listener_on_the_model(tmp_path):
    model = build("Llama", num_key_value_heads=2)

    def hooks():
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = hooks()
    for run in (lambda m: None, lambda m: generate(m, use_cache=False)):
        refusal(model, tmp_path, run, with_output=True)
        assert hooks() == before
    with pytest.raises(KvreplayError), kvrecord.record(model, tmp_path / "t.h5", with_output=True):
        generate(model, use_cache=False)
    assert hooks() == before
