"""A recorded batch gives what each of its rows gives alone, without padding."""

import h5py
import numpy as np
import pytest
from kvbase.errors import KvreplayWarning

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord.verify import verify  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_models import ARCHITECTURES, LATENT_SIZES, PROMPT, build  # noqa: E402

pytestmark = pytest.mark.torch

PAD = 2  # neither in PROMPT nor the tiny models' end of text
LENGTHS = (24, 15, 19)
TEXTS = [PROMPT[0, -n:] if n != 15 else PROMPT[0, :n] for n in LENGTHS]
GENERATED = 6
SUM_ORDER = 1e-5  # float32: padding changes the order of sums
PADDED_ARCHITECTURES = [
    "llama",
    "mistral, windows",
    "gemma 2, softcap and own scale",
    "gpt-2, no rotation",
    "gpt-oss, sinks and yarn",
    "phi, partial rotation, parallel blocks",
]


@pytest.fixture(scope="module")
def llama():
    return build("Llama", num_key_value_heads=2)


def padded(texts, side):
    """input_ids and attention_mask of a batch, as a tokenizer makes them."""
    width = max(map(len, texts))
    ids, mask = torch.full((len(texts), width), PAD), torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        at = slice(width - len(text), None) if side == "left" else slice(len(text))
        ids[row, at], mask[row, at] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


def positions(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


def generate(model, ends=None, **inputs):
    return model.generate(
        **inputs, max_new_tokens=GENERATED, do_sample=False, eos_token_id=ends, pad_token_id=PAD
    )


def record(model, path, run, **options):
    with kvrecord.record(model, path, **options), torch.no_grad():
        run()
    assert all(check.ok for check in verify(model, path))
    return path


def assert_rows_are_those_of_texts_alone(model, folder, run_batch, run_alone, **options):
    """Records run_batch(), and run_alone(text) for each text; compares prompt for prompt."""
    batch = record(model, folder / "batch.h5", run_batch, **options)
    with h5py.File(batch) as together:
        assert list(together["prompts"]) == [str(row) for row in range(len(TEXTS))]
        for row, text in enumerate(TEXTS):
            alone = record(model, folder / f"{row}.h5", lambda text=text: run_alone(text[None]), **options)
            with h5py.File(alone) as single:
                assert_equal(together[f"prompts/{row}"], single["prompts/0"])


def assert_equal(found, expected):
    assert found["tokens"][()].tolist() == expected["tokens"][()].tolist()
    assert found["position_ids"][()].tolist() == list(range(len(expected["tokens"])))
    assert found.attrs["n_prompt"] == expected.attrs["n_prompt"]
    assert found.attrs["n_generated"] == expected.attrs["n_generated"]
    for layer in expected["layers"]:
        rows, alone = found["layers"][layer], expected["layers"][layer]
        assert list(rows) == list(alone) and len(rows) >= 3
        for name in alone:
            off = np.linalg.norm(rows[name][()] - alone[name][()]) / np.linalg.norm(alone[name][()])
            assert rows[name].shape == alone[name].shape and off < SUM_ORDER, (layer, name)


def early_end(model):
    """(row, token): a token that a row generates at its second to fourth step, and another row never. None
    if no row does."""
    texts = padded(TEXTS, "left")
    new = generate(model, **texts)[:, texts["input_ids"].shape[1] :].tolist()
    found = (
        (row, token)
        for row in range(len(TEXTS))
        for at, token in enumerate(new[row][:4])
        if at and token not in new[row][:at] and any(token not in other for other in new)
    )
    return next(found, None)


@pytest.mark.parametrize("name", PADDED_ARCHITECTURES)
def test_rows_that_are_padded_on_the_right_are_those_of_the_texts_alone(tmp_path, name):
    model = ARCHITECTURES[name].build()
    assert_rows_are_those_of_texts_alone(model, tmp_path, lambda: model(**padded(TEXTS, "right")), model)


@pytest.mark.parametrize("name", PADDED_ARCHITECTURES)
def test_rows_that_are_padded_on_the_left_are_those_of_the_texts_alone(tmp_path, name):
    model, texts = ARCHITECTURES[name].build(), padded(TEXTS, "left")
    where = positions(texts["attention_mask"])
    assert_rows_are_those_of_texts_alone(model, tmp_path, lambda: model(**texts, position_ids=where), model)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_batch_hold_their_own_latents(tmp_path, side):
    model = build("DeepseekV3", **LATENT_SIZES)
    inputs = padded(TEXTS, side)
    where = {"position_ids": positions(inputs["attention_mask"])}
    assert_rows_are_those_of_texts_alone(model, tmp_path, lambda: model(**inputs, **where), model)
    with h5py.File(tmp_path / "batch.h5") as file:
        assert "latent" in file["prompts/1/layers/000"]


@pytest.mark.parametrize("name", PADDED_ARCHITECTURES)
def test_generated_rows_end_where_the_text_alone_ends(tmp_path, name):
    models = (ARCHITECTURES[name].build(seed) for seed in range(9))
    model = next(model for model in models if early_end(model))
    row, ends = early_end(model)
    assert_rows_are_those_of_texts_alone(
        model,
        tmp_path,
        lambda: generate(model, ends, **padded(TEXTS, "left")),
        lambda text: generate(model, ends, input_ids=text, attention_mask=torch.ones_like(text)),
    )
    with h5py.File(tmp_path / "batch.h5") as file:
        generated = [file[f"prompts/{each}"].attrs["n_generated"] for each in range(len(TEXTS))]
    assert 1 <= generated[row] <= 3 and max(generated) == GENERATED - 1


def test_outputs_norms_gradients_and_strided_queries_are_those_of_the_texts_alone(tmp_path, llama):
    options = {"with_output": True, "with_input": True, "query_stride": 3}
    assert_rows_are_those_of_texts_alone(
        llama,
        tmp_path,
        lambda: generate(llama, **padded(TEXTS, "left")),
        lambda text: generate(llama, input_ids=text, attention_mask=torch.ones_like(text)),
        **options,
    )
    record(llama, tmp_path / "g.h5", lambda: llama(**padded(TEXTS, "right")), gradient=1, gradient_from=4)
    with h5py.File(tmp_path / "g.h5") as file:
        shapes = [file[f"prompts/{row}/layers/000/g"].shape[2] for row in range(len(TEXTS))]
    assert shapes == [n - 1 - 4 for n in LENGTHS]  # the last row predicts no recorded token


def test_a_sequence_with_padding_is_recorded_without_it(tmp_path, llama):
    texts = {name: torch.nn.functional.pad(x, (0, 9)) for name, x in padded(TEXTS[:1], "left").items()}
    for name, run in (("wide", lambda: llama(**texts)), ("plain", lambda: llama(TEXTS[0][None]))):
        record(llama, tmp_path / f"{name}.h5", run)
    with h5py.File(tmp_path / "wide.h5") as wide, h5py.File(tmp_path / "plain.h5") as plain:
        assert_equal(wide["prompts/0"], plain["prompts/0"])


def test_rows_of_named_batches_have_the_name_and_a_number(tmp_path, llama):
    with kvrecord.record(llama, tmp_path / "t.h5") as rec, torch.no_grad():
        with rec.prompt("first", {"source": "a list"}):
            llama(**padded(TEXTS[:2], "right"))
        with rec.prompt("second"):
            llama(TEXTS[2][None])
        with rec.prompt("third"):
            generate(llama, **padded(TEXTS[1:], "left"))
    with h5py.File(tmp_path / "t.h5") as file:
        assert sorted(file["prompts"]) == ["first-0", "first-1", "second", "third-0", "third-1"]
        assert file["prompts/first-1"].attrs["source"] == "a list"
        assert file["prompts/third-0"].attrs["n_prompt"] == LENGTHS[1]


def test_sequences_that_generate_returns_for_one_text_are_prompts_of_their_own(tmp_path, llama):
    torch.manual_seed(0)
    with kvrecord.record(llama, tmp_path / "t.h5"):
        text = TEXTS[0][None]
        drawn = llama.generate(
            text, do_sample=True, num_return_sequences=3, max_new_tokens=4, eos_token_id=None
        )
    with h5py.File(tmp_path / "t.h5") as file:
        assert [file[f"prompts/{row}/tokens"][()].tolist() for row in range(3)] == drawn[:, :-1].tolist()


def test_padding_without_a_mask_counts_as_tokens_with_a_warning(tmp_path):
    model = build("Llama", num_key_value_heads=2, pad_token_id=PAD)
    ids = padded(TEXTS[:2], "right")["input_ids"]
    with pytest.warns(KvreplayWarning, match=r"prompt 1: the text ends with 9 padding tokens \(2\)"):
        record(model, tmp_path / "t.h5", lambda: model(ids))
    with h5py.File(tmp_path / "t.h5") as file:
        assert len(file["prompts/1/tokens"]) == LENGTHS[0]


def loop_behind_padding(model):
    """Two passes over a batch that is padded on the right: tokens follow padding."""
    texts = padded(TEXTS, "right")
    first = model(**texts, use_cache=True)
    mask = torch.nn.functional.pad(texts["attention_mask"], (0, 4), value=1)
    more = torch.full((len(TEXTS), 4), 7)
    where = positions(mask)[:, -4:]
    model(more, attention_mask=mask, position_ids=where, past_key_values=first.past_key_values)


def test_tokens_behind_padding_are_recorded_unless_a_window_counts_it(tmp_path, llama):
    record(llama, tmp_path / "t.h5", lambda: loop_behind_padding(llama))
    with h5py.File(tmp_path / "t.h5") as file:
        assert len(file["prompts/1/tokens"]) == LENGTHS[1] + 4
    says = refusal(ARCHITECTURES["mistral, windows"].build(), tmp_path / "window", loop_behind_padding)
    assert says.startswith("row 1 of the batch, layer 0: padding stands between tokens")


def test_the_checks_notice_a_loop_that_reorders_the_rows_of_its_cache(tmp_path, llama):
    with kvrecord.record(llama, tmp_path / "t.h5"), torch.no_grad():
        cache = llama(torch.stack([PROMPT[0], PROMPT[0].flip(0)]), use_cache=True).past_key_values
        cache.reorder_cache(torch.tensor([1, 0]))
        llama(torch.full((2, 1), 7), past_key_values=cache)
    assert any("layer 1: q, k, v" in check.what for check in verify(llama, tmp_path / "t.h5") if not check.ok)


def begins_anew(model):
    model(**padded(TEXTS, "right"))
    model(**padded(TEXTS, "right"))


def go_on_with_an_ended_row(model, ends):
    texts = padded(TEXTS, "left")
    with torch.no_grad():
        done = model.generate(
            **texts,
            max_new_tokens=GENERATED,
            do_sample=False,
            eos_token_id=ends,
            return_dict_in_generate=True,
        )
    width = done.sequences.shape[1]
    mask = torch.nn.functional.pad(
        texts["attention_mask"], (0, width - texts["attention_mask"].shape[1]), value=1
    )
    model(
        done.sequences[:, -1:],
        attention_mask=mask,
        position_ids=positions(mask)[:, -1:],
        past_key_values=done.past_key_values,
    )


def shows_what_was_hidden(model):
    texts = padded(TEXTS, "right")
    first = model(**texts, use_cache=True)
    model(torch.full((len(TEXTS), 1), 7), past_key_values=first.past_key_values)


def with_stop_strings(model):
    model.generate(**padded(TEXTS, "left"), max_new_tokens=3, stop_strings=["end"], tokenizer=object())


def with_criteria_for_two_sequences_of_one_text(model):
    model.generate(
        PROMPT, do_sample=True, num_return_sequences=2, max_new_tokens=3, stopping_criteria=[lambda *_: False]
    )


def packed(model):
    ends = torch.tensor([0, 10, 24], dtype=torch.int32)
    model(PROMPT, cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=14, max_length_k=14)


def mask_of_four_axes(model):
    width = LENGTHS[0]
    seen = torch.ones(width, width, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    model(PROMPT.repeat(2, 1), attention_mask=seen)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda m: generate(m, **padded(TEXTS, "left"), num_beams=2), "num_beams = 2: beams exchange their"),
        (lambda m: m.generate(PROMPT, num_beams=3, max_new_tokens=2), "num_beams = 3: beams exchange their"),
        (with_stop_strings, "stop_strings in a batch of 3 sequences: the recorder cannot tell where"),
        (with_criteria_for_two_sequences_of_one_text, "stopping_criteria in a batch of 2 sequences"),
        (lambda m: m(**padded(TEXTS, "left")), "row 1 of the batch: padding stands before tokens, and the"),
        (begins_anew, "row 0 of the batch: attention_mask has 24 columns, but with this pass 48 ran: use a"),
        (shows_what_was_hidden, "row 1 of the batch: attention_mask changed for tokens that ran before"),
        (lambda m: [m(PROMPT), m(PROMPT.repeat(2, 1))], "a pass over 2 sequences after one over 1: use rec"),
        (
            lambda m: m(PROMPT, attention_mask=torch.zeros_like(PROMPT)),
            "prompt 0: all of its tokens are padding",
        ),
        (packed, "packed texts (cu_seq_lens_q): they share a row; give each a row of its own"),
        (mask_of_four_axes, "batch of 2 sequences whose attention_mask is not [batch, tokens]"),
        (lambda m: generate(m, **padded(TEXTS, "left"), use_cache=False), "use a cache (use_cache=True)"),
    ],
)
def test_batches_that_cannot_be_recorded_are_refused_by_their_reason(tmp_path, llama, run, said):
    assert said in refusal(llama, tmp_path, run)


def test_a_batch_with_an_ended_row_does_not_go_on(tmp_path, llama):
    row, ends = early_end(llama)
    says = refusal(llama, tmp_path, lambda m: go_on_with_an_ended_row(m, ends))
    assert says.startswith(f"row {row} of the batch: ended before, and `generate` padded it")
