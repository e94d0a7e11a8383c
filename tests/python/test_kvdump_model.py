"""The dumper on tiny random models of several architectures."""

import json

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvdump  # noqa: E402
from kvdump.attention import exact_attention, mean_relative_deviation  # noqa: E402
from kvdump.dtypes import read_floats  # noqa: E402
from kvdump.facts import measure, rotate  # noqa: E402
from kvdump.hook import AttentionHook  # noqa: E402
from kvdump.verify import attend_stored, verify  # noqa: E402

pytestmark = pytest.mark.torch

# float32, sums in another order.
FLOAT32_DEVIATION = 1e-5
IDS = torch.arange(3, 23)[None]


def tiny_config(**changes):
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        # Larger weights than usual, so that attention is far from uniform.
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    return transformers.LlamaConfig(**sizes | changes)


def build(model_class, config):
    torch.manual_seed(0)
    return model_class(config).eval()


@pytest.fixture
def llama():
    return build(transformers.LlamaForCausalLM, tiny_config())


def generate(model, n=6, ids=IDS, **options):
    mask = torch.ones_like(ids)
    return model.generate(
        ids, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, do_sample=False, **options
    )


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def test_the_hook_changes_neither_tokens_nor_logits(llama, tmp_path):
    tokens, before = generate(llama), logits(llama)
    implementation = llama.config._attn_implementation
    with kvdump.record(llama, tmp_path / "t.h5"):
        assert torch.equal(generate(llama), tokens)
    with AttentionHook(llama, lambda call: None):
        assert torch.equal(logits(llama), before)
    assert llama.config._attn_implementation == implementation


def test_generated_tokens_give_one_row_less_and_the_rows_of_a_full_prefill(llama, tmp_path):
    with kvdump.record(llama, tmp_path / "g.h5"):
        tokens = generate(llama, 6)
    with kvdump.record(llama, tmp_path / "p.h5"):
        logits(llama, tokens[:, :-1])
    with h5py.File(tmp_path / "g.h5") as generated, h5py.File(tmp_path / "p.h5") as prefilled:
        assert np.array_equal(generated["prompts/0/tokens"], tokens[0, :-1])
        assert np.array_equal(generated["prompts/0/position_ids"], np.arange(25))
        assert dict(generated["prompts/0"].attrs) == {"n_prompt": 20, "n_generated": 5}
        for layer in ("000", "001", "002"):
            for name, heads in (("q", 4), ("k", 2), ("v", 2)):
                a, b = (f[f"prompts/0/layers/{layer}/{name}"] for f in (generated, prefilled))
                assert a.shape == (heads, 25, 8)
                assert mean_relative_deviation(read_floats(a), read_floats(b)) < FLOAT32_DEVIATION


def test_recomputed_attention_is_the_layers_output(llama, tmp_path):
    with kvdump.record(llama, tmp_path / "t.h5", out_layers=(1,)):
        generate(llama)
    with h5py.File(tmp_path / "t.h5") as trace:
        layer = trace["prompts/0/layers/001"]
        assert mean_relative_deviation(attend_stored(layer), layer["out"][...]) < FLOAT32_DEVIATION
        assert "out" not in trace["prompts/0/layers/000"]
    assert all(check.ok for check in verify(llama, tmp_path / "t.h5"))


def test_verify_notices_a_changed_model(llama, tmp_path):
    with kvdump.record(llama, tmp_path / "t.h5"):
        generate(llama)
    with torch.no_grad():
        llama.model.layers[1].self_attn.k_proj.weight.mul_(1.01)
    failed = [check.what for check in verify(llama, tmp_path / "t.h5") if not check.ok]
    assert any("layer 1: q, k, v" in what for what in failed)
    assert not any("layer 0" in what for what in failed)


def test_strided_queries_keep_every_third_row_also_in_decode(llama, tmp_path):
    with kvdump.record(llama, tmp_path / "all.h5"):
        generate(llama)
    with kvdump.record(llama, tmp_path / "some.h5", query_stride=3, out_layers=(0,)):
        generate(llama)
    with h5py.File(tmp_path / "all.h5") as full, h5py.File(tmp_path / "some.h5") as strided:
        some = strided["prompts/0/layers/000"]
        assert np.array_equal(some["q_pos"], np.arange(0, 25, 3))
        assert np.array_equal(some["q"], full["prompts/0/layers/000/q"][:, ::3])
        assert some["k"].shape[1] == 25
    assert all(check.ok for check in verify(llama, tmp_path / "some.h5"))


def test_a_prompt_fed_in_two_chunks_keeps_the_query_stride(llama, tmp_path):
    with kvdump.record(llama, tmp_path / "t.h5", query_stride=3), torch.no_grad():
        cache = transformers.DynamicCache(config=llama.config)
        llama(input_ids=IDS[:, :10], past_key_values=cache, use_cache=True)
        llama(input_ids=IDS[:, 10:], past_key_values=cache, use_cache=True)
    with h5py.File(tmp_path / "t.h5") as trace:
        assert trace["prompts/0/layers/000/q"].shape[1] == len(range(0, 20, 3))
    assert all(check.ok for check in verify(llama, tmp_path / "t.h5"))


def test_with_output_puts_the_attention_into_the_residual_stream(llama, tmp_path):
    seen = []
    block = llama.model.layers[2]
    with kvdump.record(llama, tmp_path / "t.h5", with_output=True):
        taps = [
            block.register_forward_pre_hook(lambda _, args: seen.append(args[0])),
            block.self_attn.register_forward_hook(lambda _, args, out: seen.append(out[0])),
        ]
        logits(llama)
        for tap in taps:
            tap.remove()
    before, attention = (x[0].numpy() for x in seen)
    with h5py.File(tmp_path / "t.h5") as trace:
        layer = trace["prompts/0/layers/002"]
        projected = np.einsum("htd,hdc->tc", layer["out"][...], layer["o_proj"][...])
        assert mean_relative_deviation(projected, attention) < FLOAT32_DEVIATION
        norm = np.linalg.norm(before + attention, axis=-1)
        assert np.allclose(layer["resid_norm"], norm, rtol=FLOAT32_DEVIATION)


def test_keys_are_the_rotated_projections(llama, tmp_path):
    with kvdump.record(llama, tmp_path / "t.h5"):
        logits(llama)
    with h5py.File(tmp_path / "t.h5") as trace, torch.no_grad():
        rope = json.loads(trace.attrs["rope_json"])
        assert (rope["layout"], rope["rotary_dims"], rope["attention_factor"]) == ("half_split", 8, 1.0)
        hidden = llama.model.layers[0].input_layernorm(llama.model.embed_tokens(IDS))
        k = llama.model.layers[0].self_attn.k_proj(hidden)[0].view(20, 2, 8).transpose(0, 1).numpy()
        inv_freq = np.array(rope["inv_freq"])
        rotated = np.stack([rotate(k[:, t], t * inv_freq, rope["layout"]) for t in range(20)], axis=1)
        assert mean_relative_deviation(rotated, trace["prompts/0/layers/000/k"][...]) < FLOAT32_DEVIATION


def test_sliding_windows_are_recorded_beyond_the_window(tmp_path):
    config = transformers.MistralConfig(**tiny_config().to_diff_dict() | {"sliding_window": 5, "head_dim": 8})
    model = build(transformers.MistralForCausalLM, config)
    tokens = generate(model)
    with kvdump.record(model, tmp_path / "t.h5", out_layers=(2,)):
        assert torch.equal(generate(model), tokens)
    with h5py.File(tmp_path / "t.h5") as trace:
        layer = trace["prompts/0/layers/002"]
        assert layer.attrs["sliding_window"] == 5
        assert layer["k"].shape == (2, 25, 8)
        assert mean_relative_deviation(attend_stored(layer), layer["out"][...]) < FLOAT32_DEVIATION
        q, k, v = (layer[x][...] for x in "qkv")
        unlimited = exact_attention(q, k, v, np.arange(25), layer.attrs["scaling"])
        assert mean_relative_deviation(unlimited, layer["out"][...]) > 0.01


def test_a_layer_without_rope_says_so():
    config = transformers.SmolLM3Config(
        **tiny_config().to_diff_dict() | {"no_rope_layers": [1, 0, 1], "layer_types": ["full_attention"] * 3}
    )
    facts = measure(build(transformers.SmolLM3ForCausalLM, config))
    assert [facts[layer].rotary_dims for layer in range(3)] == [8, 0, 8]
    assert facts[1].attributes(facts[0].rope_json)["rope"] == "none"


def test_partial_rotation_is_measured():
    config = transformers.GPTNeoXConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        rotary_pct=0.5,
    )
    facts = measure(build(transformers.GPTNeoXForCausalLM, config))
    assert facts[0].rotary_dims == 4


def test_opt_scales_its_queries_itself():
    config = transformers.OPTConfig(
        vocab_size=64,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=32,
    )
    facts = measure(build(transformers.OPTForCausalLM, config))
    assert (facts[0].scaling, facts[0].q_prescaled, facts[0].rotary_dims) == (1.0, True, 0)


def test_a_model_that_never_calls_the_interface_is_refused(tmp_path):
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    model = build(transformers.BloomForCausalLM, config)
    with pytest.raises(kvdump.DumpError, match="never calls"), kvdump.record(model, tmp_path / "t.h5"):
        pass


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda m: generate(m, cache_implementation="static"), "static cache"),
        (lambda m: generate(m, use_cache=False), "started over"),
        (lambda m: logits(m, IDS.repeat(2, 1)), "one sequence"),
        (lambda m: m(input_ids=IDS, attention_mask=(IDS > 4).long()), "padded"),
        (lambda m: None, "never ran"),
    ],
)
def test_what_cannot_be_recorded_faithfully_is_refused_and_not_published(llama, tmp_path, run, says):
    recorder = kvdump.record(llama, tmp_path / "t.h5")
    with pytest.raises(kvdump.DumpError, match=says), recorder, recorder.prompt("0"):
        run(llama)
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5.part"]
    logits(llama)


def test_a_value_beyond_float16_is_refused(llama, tmp_path):
    with torch.no_grad():
        llama.model.layers[0].self_attn.v_proj.weight.mul_(1e6)
    recorder = kvdump.record(llama, tmp_path / "t.h5", dtype="f16")
    with pytest.raises(kvdump.DumpError, match="layer 0: v holds"), recorder:
        logits(llama)
