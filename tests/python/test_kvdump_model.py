"""The recorder on one tiny random model: rows, strides, chunks, and refusals."""

import h5py
import numpy as np
import pytest
from kvbase.errors import KvreplayError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvrecord  # noqa: E402
import kvrecord.verify  # noqa: E402
from kvrecord.attention import mean_relative_deviation  # noqa: E402
from kvrecord.verify import attend_stored, verify  # noqa: E402
from tiny_models import ARCHITECTURES, GENERATED, PROMPT, build, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

FLOAT32_DEVIATION = 1e-5  # float32, sums in another order
ROWS = PROMPT.shape[1] + GENERATED - 1


@pytest.fixture
def llama():
    return build("Llama", num_hidden_layers=3, num_key_value_heads=2)


def test_the_models_implementation_is_restored_after_a_recording(llama, tmp_path):
    implementation = llama.config._attn_implementation
    with kvrecord.record(llama, tmp_path / "t.h5"):
        logits(llama)
    assert llama.config._attn_implementation == implementation


def test_generated_tokens_give_one_row_less(llama, tmp_path):
    with kvrecord.record(llama, tmp_path / "g.h5"):
        tokens = generate(llama)
    with h5py.File(tmp_path / "g.h5") as trace:
        assert np.array_equal(trace["prompts/0/tokens"], tokens[0, :-1])
        assert np.array_equal(trace["prompts/0/position_ids"], np.arange(ROWS))
        counts = {"n_prompt": PROMPT.shape[1], "n_generated": GENERATED - 1}
        assert dict(trace["prompts/0"].attrs) == counts


def test_only_the_chosen_layers_get_the_attention_output(llama, tmp_path):
    with kvrecord.record(llama, tmp_path / "t.h5", out_layers=(1,)):
        generate(llama)
    with h5py.File(tmp_path / "t.h5") as trace:
        layer = trace["prompts/0/layers/001"]
        assert mean_relative_deviation(attend_stored(layer), layer["out"][...]) < FLOAT32_DEVIATION
        assert "out" not in trace["prompts/0/layers/000"]
    assert all(check.ok for check in verify(llama, tmp_path / "t.h5"))


def test_verify_notices_a_changed_model(llama, tmp_path):
    with kvrecord.record(llama, tmp_path / "t.h5"):
        generate(llama)
    with torch.no_grad():
        llama.model.layers[1].self_attn.k_proj.weight.mul_(1.01)
    failed = [check.what for check in verify(llama, tmp_path / "t.h5") if not check.ok]
    assert any("layer 1: q, k, v" in what for what in failed)
    assert not any("layer 0" in what for what in failed)


def test_verify_computes_the_logits_of_a_long_text_for_its_last_tokens_alone(llama, tmp_path, monkeypatch):
    with kvrecord.record(llama, tmp_path / "t.h5"):
        generate(llama)
    monkeypatch.setattr(kvrecord.verify, "LOGIT_ROWS", 8)
    rows = []
    llama.lm_head.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    assert all(check.ok for check in verify(llama, tmp_path / "t.h5"))
    assert rows == [8, 8]


def test_strided_queries_keep_every_third_row_also_in_decode(llama, tmp_path):
    with kvrecord.record(llama, tmp_path / "all.h5"):
        generate(llama)
    with kvrecord.record(llama, tmp_path / "some.h5", query_stride=3, out_layers=(0,)):
        generate(llama)
    with h5py.File(tmp_path / "all.h5") as full, h5py.File(tmp_path / "some.h5") as strided:
        some = strided["prompts/0/layers/000"]
        assert np.array_equal(some["q_pos"], np.arange(0, ROWS, 3))
        assert np.array_equal(some["q"], full["prompts/0/layers/000/q"][:, ::3])
        assert some["k"].shape[1] == ROWS
    assert all(check.ok for check in verify(llama, tmp_path / "some.h5"))


def test_a_prompt_fed_in_two_chunks_keeps_the_query_stride(llama, tmp_path):
    with kvrecord.record(llama, tmp_path / "t.h5", query_stride=3), torch.no_grad():
        cache = transformers.DynamicCache(config=llama.config)
        llama(input_ids=PROMPT[:, :10], past_key_values=cache, use_cache=True)
        llama(input_ids=PROMPT[:, 10:], past_key_values=cache, use_cache=True)
    with h5py.File(tmp_path / "t.h5") as trace:
        assert trace["prompts/0/layers/000/q"].shape[1] == len(range(0, PROMPT.shape[1], 3))
    assert all(check.ok for check in verify(llama, tmp_path / "t.h5"))


def test_a_value_beyond_float16_is_refused(llama, tmp_path):
    with torch.no_grad():
        llama.model.layers[0].self_attn.v_proj.weight.mul_(1e6)
    recorder = kvrecord.record(llama, tmp_path / "t.h5", dtype="f16")
    with pytest.raises(KvreplayError, match="layer 0: v holds"), recorder:
        logits(llama)


def test_a_prompt_that_never_runs_is_refused(llama, tmp_path):
    recorder = kvrecord.record(llama, tmp_path / "t.h5")
    with pytest.raises(KvreplayError, match="never ran"), recorder, recorder.prompt("0"):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5.part"]


def test_a_window_is_recorded_beyond_its_rows(tmp_path):
    model = ARCHITECTURES["mistral, windows"].build()
    with kvrecord.record(model, tmp_path / "t.h5"):
        generate(model)
    with h5py.File(tmp_path / "t.h5") as trace:
        layer = trace["prompts/0/layers/001"]
        assert layer.attrs["sliding_window"] < PROMPT.shape[1]
        assert layer["k"].shape[1] == ROWS


def test_a_trace_is_named_after_the_loaded_model(llama, tmp_path):
    llama.save_pretrained(tmp_path / "tiny-llama")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tiny-llama")
    for model, options, name in (
        (llama, {}, "llama"),
        (loaded, {}, "tiny-llama"),
        (loaded, {"name": "mine"}, "mine"),
    ):
        with kvrecord.record(model, tmp_path / "t.h5", **options):
            logits(model)
        with h5py.File(tmp_path / "t.h5") as trace:
            assert trace.attrs["model"] == name
