"""`--repeat`: the queries of KVzip's second pass over the context, for every architecture."""

from itertools import pairwise

import h5py
import numpy as np
import pytest
from kvbase.errors import ConfigError, KvreplayError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord import repeat  # noqa: E402
from kvrecord.attention import mean_relative_deviation  # noqa: E402
from kvrecord.hook import AttentionHook  # noqa: E402
from kvrecord.repeat_rows import PROMPT_FIRST, PROMPT_NEXT, Wording, repeat_rows, suffix_of  # noqa: E402
from kvrecord.verify_repeat import verify_repeat  # noqa: E402
from kvtrace.dtypes import read_floats  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_model_folder import tokenizer  # noqa: E402
from tiny_models import ARCHITECTURES, PROMPT, build, every_architecture, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

FLOAT32_DEVIATION = 1e-5  # float32, sums in another order
RECURRENT_DEVIATION = 1e-4  # a recurrent state also changes the order of sums
MATTERS = 0.01
CHUNK = 10
T = PROMPT.shape[1]
WORDING = Wording([40, 41, 42], [50, 51], [60], "\n")


def recorded(path, model=None, run=logits, **options):
    """Records a trace whose context is repeated in chunks of CHUNK tokens."""
    model = model or build("Llama", num_key_value_heads=2)
    with kvrecord.record(model, path, tokenizer=tokenizer(), **{"repeat": CHUNK, **options}):
        run(model)
    return path


def rows_after_context(model, context, rows):
    """{layer: (q, k, input norm)} of rows after a context, in one pass without a cache."""
    seen, norms = {}, {}

    def on_input(layer, args, kwargs):
        given = args[0] if args else kwargs["hidden_states"]
        norms[layer] = given[0, len(context) :].norm(dim=-1).numpy()

    def on_call(call):
        seen[call.layer] = (call.q[:, len(context) :].numpy(), call.k[:, len(context) :].numpy(), call.module)

    with AttentionHook(model, on_call), torch.no_grad():
        model(input_ids=torch.tensor([context + rows]), use_cache=False)
        taps = [
            module.register_forward_pre_hook(
                lambda _, args, kwargs, layer=layer: on_input(layer, args, kwargs), with_kwargs=True
            )
            for layer, (_, _, module) in seen.items()
        ]
        model(input_ids=torch.tensor([context + rows]), use_cache=False)
        for tap in taps:
            tap.remove()
    return {layer: (q, k, norms[layer]) for layer, (q, k, _) in seen.items()}


def test_the_rows_of_a_chunk_are_an_instruction_the_suffix_and_the_chunk():
    context = list(range(100, 123))
    plan = repeat_rows(context, WORDING, CHUNK)
    first = [40, 41, 42, 60, *context[:10]]
    second = [50, 51, *context[2:10], 60, *context[10:20]]
    third = [50, 51, *context[12:20], 60, *context[20:]]
    assert plan.tokens == first + second + third
    assert plan.ctx == [0, 10, 20, 23]
    assert plan.rows == [0, 14, 35, 49]
    assert plan.chunks() == [first, second, third]
    assert plan.longest == 21


def test_a_chunk_shorter_than_the_overlap_is_repeated_completely():
    assert repeat_rows(list(range(1, 9)), WORDING, 3).chunks() == [
        [40, 41, 42, 60, 1, 2, 3],
        [50, 51, 1, 2, 3, 60, 4, 5, 6],
        [50, 51, 4, 5, 6, 60, 7, 8],
    ]
    assert repeat_rows([1, 2, 3], WORDING, 3).ctx == [0, 3]


def test_the_suffix_is_the_chat_templates_text_before_an_answer():
    words = tokenizer()
    words.chat_template = (
        "<s>{{ messages[0].content }}</s>{% if add_generation_prompt %}{{ ' w9' }}"
        "{% if enable_thinking is not defined or enable_thinking %} w10{% endif %}{% endif %}"
    )
    chat = words("<s>w5 w6</s> w9 w10")["input_ids"]
    found, plain = Wording.of(words, chat), Wording.of(words, chat[:-1])
    assert (found.suffix, found.suffix_ids) == ("</s> w9", [1, 9])
    assert (plain.suffix, plain.suffix_ids) == ("\n", [])
    assert Wording.of(tokenizer(), chat).suffix == "\n"


def test_a_chat_template_that_changes_words_is_refused_before_anything_runs(tmp_path):
    words = tokenizer()
    words.chat_template = "{{ messages[0].content | upper | replace('#', '') }}"
    with pytest.raises(KvreplayError, match=r"changes the user's text .*: leave --repeat out"):
        suffix_of(words)
    assert "changes the user's text" in refusal(build("Llama"), tmp_path, repeat=CHUNK, tokenizer=words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", every_architecture())
def test_the_rows_equal_one_pass_over_context_instruction_and_chunk(tmp_path, name):
    model = ARCHITECTURES[name].build()
    path = recorded(tmp_path / "t.h5", model)
    tolerance = RECURRENT_DEVIATION if ARCHITECTURES[name].gated else FLOAT32_DEVIATION
    with h5py.File(path) as trace:
        group = trace["prompts/0/repeat"]
        tokens, rows = group["tokens"][...], group["rows"][...]
        assert group["ctx"][...].tolist() == [0, 10, 20, T]
        assert rows[-1] == len(tokens)
        for begin, end in pairwise(rows):
            found = rows_after_context(model, PROMPT[0].tolist(), tokens[begin:end].tolist())
            assert found.keys() == ARCHITECTURES[name].layers.keys()
            for layer, (q, k, norm) in found.items():
                stored = trace[f"prompts/0/layers/{layer:03d}"]
                assert stored["repeat_q"].shape == (q.shape[0], len(tokens), q.shape[2])
                assert mean_relative_deviation(stored["repeat_q"][:, begin:end], q) < tolerance
                assert mean_relative_deviation(stored["repeat_k"][:, begin:end], k) < tolerance
                assert stored["repeat_in_norm"].dtype == np.float32
                assert np.allclose(stored["repeat_in_norm"][begin:end], norm, rtol=10 * tolerance)


def test_the_trace_records_the_instruction(tmp_path):
    with h5py.File(recorded(tmp_path / "t.h5")) as trace:
        told = dict(trace["prompts/0/repeat"].attrs)
        assert {name: trace[f"prompts/0/repeat/{name}"].dtype for name in ("tokens", "rows", "ctx")} == (
            dict.fromkeys(("tokens", "rows", "ctx"), np.int32)
        )
    assert told == {
        "context_tokens": T,
        "prompt_first": PROMPT_FIRST,
        "prompt_next": PROMPT_NEXT,
        "suffix": "\n",
        "prev_tokens": 8,
    }


def test_the_context_is_the_prompt_by_default(tmp_path):
    for options, length in (({}, T), ({"context_tokens": 15}, 15), ({"context_tokens": T + 3}, T + 3)):
        path = recorded(tmp_path / "t.h5", run=generate, **options)
        with h5py.File(path) as trace:
            group, tokens = trace["prompts/0/repeat"], trace["prompts/0/tokens"][...]
            assert group.attrs["context_tokens"] == group["ctx"][-1] == length
            assert group["tokens"][-1] == tokens[length - 1]
        assert all(check.ok for check in verify_repeat(build("Llama", num_key_value_heads=2), path))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_queries_and_keys_have_the_type_of_q_and_norms_are_float32(tmp_path, dtype):
    full, narrow = recorded(tmp_path / "f.h5"), recorded(tmp_path / "n.h5", dtype=dtype)
    with h5py.File(full) as one, h5py.File(narrow) as other:
        one, other = (trace["prompts/0/layers/001"] for trace in (one, other))
        for name in ("repeat_q", "repeat_k"):
            assert other[name].id.get_type() == other["q"].id.get_type()
            assert np.allclose(read_floats(other[name]), one[name], rtol=2**-8, atol=1e-4)
        assert np.array_equal(other["repeat_in_norm"], one["repeat_in_norm"])


def test_strided_queries_and_chosen_layers_leave_the_repeated_rows_whole(tmp_path):
    whole = recorded(tmp_path / "w.h5")
    with h5py.File(whole) as one, h5py.File(recorded(tmp_path / "s.h5", layers=(1,), query_stride=5)) as few:
        assert list(few["prompts/0/layers"]) == ["001"]
        for name in ("repeat_q", "repeat_k", "repeat_in_norm"):
            assert np.array_equal(few[f"prompts/0/layers/001/{name}"], one[f"prompts/0/layers/001/{name}"])


def test_positions_that_do_not_start_at_0_continue_after_the_context(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    positions = torch.arange(100, 100 + T)[None]

    def run(model):
        with torch.no_grad():
            model(input_ids=PROMPT, position_ids=positions)

    path = recorded(tmp_path / "t.h5", model, run)
    assert all(check.ok for check in verify_repeat(model, path))
    with h5py.File(path) as moved, h5py.File(recorded(tmp_path / "z.h5", model)) as from_zero:
        found, other = (trace["prompts/0/layers/000/repeat_q"][...] for trace in (moved, from_zero))
        # The only change in the first layer: queries are rotated by 100 more positions.
        assert mean_relative_deviation(found, other) > MATTERS
        assert np.allclose(np.linalg.norm(found, axis=-1), np.linalg.norm(other, axis=-1), rtol=1e-5)


def test_a_recording_leaves_model_and_first_pass_as_they_are_without_it(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    before = logits(model)
    with kvrecord.record(model, tmp_path / "plain.h5"):
        generate(model)
    path = recorded(tmp_path / "t.h5", model, generate)
    assert torch.equal(logits(model), before)
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0
    with h5py.File(path) as trace, h5py.File(tmp_path / "plain.h5") as plain:
        for name, dataset in plain["prompts/0/layers/001"].items():
            assert np.array_equal(dataset, trace[f"prompts/0/layers/001/{name}"])


def shift_rows(values):
    return np.roll(values, 1, axis=-2 if values.ndim == 3 else 0)


@pytest.mark.parametrize("name", ["repeat_q", "repeat_k", "repeat_in_norm"])
def test_verify_finds_wrong_rows(tmp_path, name):
    model = build("Llama", num_key_value_heads=2)
    path = recorded(tmp_path / "t.h5", model)
    assert [check.ok for check in verify_repeat(model, path)] == [True] * 5
    with h5py.File(path, "r+") as trace:
        dataset = trace[f"prompts/0/layers/001/{name}"]
        dataset[...] = shift_rows(dataset[...])
    found = {check.what: check.ok for check in verify_repeat(model, path)}
    assert [what for what, ok in found.items() if not ok] == [
        "layer 1: repeated rows against one pass over context and chunk"
    ]


def test_verify_finds_keys_of_a_context_that_are_off_by_one_bit(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    path = recorded(tmp_path / "t.h5", model)
    with h5py.File(path, "r+") as trace:
        dataset = trace["prompts/0/layers/000/k"]
        dataset[0, 3, 2] = np.nextafter(dataset[0, 3, 2], np.float32(np.inf))
    failed = [check for check in verify_repeat(model, path) if not check.ok]
    assert [check.what for check in failed] == [
        "layer 0: keys of the repeated context against the recorded ones"
    ]
    assert failed[0].bound == 0


def test_verify_finds_a_text_other_than_the_contexts(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    path = recorded(tmp_path / "t.h5", model)
    with h5py.File(path, "r+") as trace:
        trace["prompts/0/repeat/tokens"][-1] += 1
    failed = [check.what for check in verify_repeat(model, path) if not check.ok]
    assert failed[0] == "repeated tokens that are not the context's"


def test_a_trace_without_repeated_rows_has_none_to_verify(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    path = recorded(tmp_path / "t.h5", model, repeat=0)
    assert verify_repeat(model, path) == []
    with h5py.File(path) as trace:
        assert "repeat" not in trace["prompts/0"] and "repeat" not in trace.attrs["dump_json"]


def test_a_model_with_other_results_with_a_cache_is_refused(tmp_path, monkeypatch):
    def forgets(model, ids, positions=None, **cache):
        return repeat._run(model, ids, positions, use_cache=True)

    monkeypatch.setattr(repeat, "run_cached", forgets)
    says = refusal(build("Llama"), tmp_path, repeat=CHUNK, tokenizer=tokenizer())
    assert says == (
        "layer 0: LlamaAttention computes other rows with the context in a cache than in one pass: "
        "leave --repeat out"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_context_that_is_another_one_the_second_time_is_refused(tmp_path):
    model = build("Llama")

    def run(model):
        logits(model)
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.01)

    with pytest.raises(KvreplayError, match="layer 0: the keys of the context, run once more, differ"):
        recorded(tmp_path / "t.h5", model, run)
    assert [path.name for path in tmp_path.iterdir()] == ["t.h5.part"]


def test_the_rows_need_a_tokenizer_and_free_positions_after_the_context(tmp_path):
    with pytest.raises(KvreplayError, match="repeat needs the tokenizer"):
        kvrecord.record(build("Llama"), tmp_path / "t.h5", repeat=CHUNK)
    with pytest.raises(ConfigError, match=r"the model has 30 positions: use a smaller CHUNK"):
        recorded(tmp_path / "t.h5", build("Llama", max_position_embeddings=30))
