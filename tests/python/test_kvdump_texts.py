"""Recording texts with a loaded model: equal to the command line's trace; wrong requests are refused."""

import inspect

import h5py
import numpy as np
import pytest
from kvbase.errors import ConfigError, KvreplayError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from dumper_runs import contents  # noqa: E402
from front_door import record as cli  # noqa: E402
from kvrecord.verify import Check, verify  # noqa: E402
from kvtrace.dtypes import stored_dtype  # noqa: E402
from tiny_model_folder import TEXT, jsonl, saved  # noqa: E402
from tiny_models import PROMPT, build, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

TEXTS = [TEXT, "w5 w6 w7", "w40 w3"]
TOKENS = len(TEXT.split())
IDS = PROMPT[0].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("gemma3"), "gemma 3, two thetas")


@pytest.fixture(scope="module")
def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
def llama():
    return build("Llama", num_key_value_heads=2)


def attributes(path):
    """Attributes of the root and of every group, except those that differ between runs."""
    found = {}
    with h5py.File(path) as trace:
        found["/"] = dict(trace.attrs)
        trace.visititems(lambda name, item: found.update({name: dict(item.attrs)}))
    for name in ("created_utc", "command_line", "dump_json"):
        found["/"].pop(name)
    return found


@pytest.mark.parametrize("generated", [0, 4])
def test_texts_of_a_loaded_model_give_the_trace_of_the_command_line(folder, loaded, tmp_path, generated):
    prompts = jsonl(tmp_path / "p.jsonl", *TEXTS)
    words = ["--model", folder, "--prompts", prompts, "-o", tmp_path / "cli.h5", "--generate", generated]
    assert cli.main([str(word) for word in [*words, "--layers", "0,2", "--with-text"]]) == 0
    options = {"layers": [0, 2], "generate": generated, "with_text": True}
    path = kvrecord.record_texts(loaded, TEXTS, tmp_path / "api.h5", **options)
    assert path == tmp_path / "api.h5"
    ours, theirs = contents(path), contents(tmp_path / "cli.h5")
    assert ours == {(prompt.removeprefix("p"), *rest): data for (prompt, *rest), data in theirs.items()}
    ours, theirs = attributes(path), attributes(tmp_path / "cli.h5")
    for name, expected in theirs.items():
        found = ours[name.replace("prompts/p", "prompts/")]
        assert found.keys() == expected.keys()
        # Apart from names and sources of prompts, everything is equal.
        assert {k: v for k, v in found.items() if k != "source"} == {
            k: v for k, v in expected.items() if k != "source"
        }


def test_token_ids_give_the_rows_of_a_plain_recording(llama, tmp_path):
    path = kvrecord.record_texts(llama, [IDS], tmp_path / "texts.h5", generate=5)
    with kvrecord.record(llama, tmp_path / "plain.h5"):
        tokens = generate(llama, 5)
    assert contents(path) == contents(tmp_path / "plain.h5")
    with h5py.File(path) as trace:
        assert np.array_equal(trace["prompts/0/tokens"], tokens[0, :-1])
        assert dict(trace["prompts/0"].attrs)["source"] == "texts[0]"


@pytest.mark.parametrize(
    "texts",
    [[IDS], [tuple(IDS)], PROMPT, PROMPT.numpy(), [PROMPT[0]], [np.array(IDS)], [list(PROMPT.numpy()[0])]],
)
def test_ids_may_be_lists_arrays_or_tensors(llama, tmp_path, texts):
    with h5py.File(kvrecord.record_texts(llama, texts, tmp_path / "t.h5", progress=False)) as trace:
        assert list(trace["prompts"]) == ["0"]
        assert trace["prompts/0/tokens"][...].tolist() == IDS


def test_one_text_is_one_prompt_and_a_list_may_mix_texts_and_ids(loaded, tmp_path):
    for texts, lengths in ((TEXT, [TOKENS]), ([TEXT, [5, 6, 7]], [TOKENS, 3])):
        path = kvrecord.record_texts(loaded, texts, str(tmp_path / "t.h5"), overwrite=True)
        with h5py.File(path) as trace:
            assert [prompt["tokens"].shape[0] for prompt in trace["prompts"].values()] == lengths


@pytest.mark.parametrize(
    ("layers", "recorded"),
    [("all", [0, 1, 2]), ("every:2", [0, 2]), ([2, 0], [0, 2]), ("1", [1]), (range(2), [0, 1]), ((2,), [2])],
)
def test_layers_are_chosen_by_word_or_number(loaded, tmp_path, layers, recorded):
    with h5py.File(kvrecord.record_texts(loaded, TEXT, tmp_path / "t.h5", layers=layers)) as trace:
        assert list(trace["prompts/0/layers"]) == [f"{layer:03d}" for layer in recorded]


def test_prompts_are_cut_queries_strided_and_rows_stored_as_requested(loaded, tmp_path):
    options = {"max_tokens": 9, "query_stride": 4, "dtype": "bf16", "verify": True}
    with h5py.File(kvrecord.record_texts(loaded, TEXT, tmp_path / "t.h5", **options)) as trace:
        layer = trace["prompts/0/layers/001"]
        assert layer["k"].shape == (2, 9, 8)
        assert layer["q_pos"][...].tolist() == [0, 4, 8]
        assert stored_dtype(layer["k"]) == "bf16"


def test_a_name_without_suffix_gets_a_file_a_layer_and_the_path_of_its_index(loaded, tmp_path):
    path = kvrecord.record_texts(loaded, TEXT, tmp_path / "dumps", layers="every:2")
    assert path == tmp_path / "dumps/index.h5"
    assert sorted(p.name for p in (tmp_path / "dumps/0").iterdir()) == ["000.h5", "002.h5"]
    assert all(check.ok for check in verify(loaded, path))


def test_an_explicit_tokenizer_overrides_the_models(folder, llama, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    path = kvrecord.record_texts(llama, "w9 w8", tmp_path / "t.h5", tokenizer=tokenizer)
    with h5py.File(path) as trace:
        assert trace["prompts/0/tokens"][...].tolist() == [9, 8]
        assert "64 tokens" in trace.attrs["tokenizer"]


def test_a_trace_names_the_model_as_loaded_or_as_requested(folder, loaded, tmp_path):
    for options, name in (({}, folder.name), ({"name": "mine"}, "mine")):
        path = kvrecord.record_texts(loaded, "w9 w8", tmp_path / "t.h5", overwrite=True, **options)
        with h5py.File(path) as trace:
            assert trace.attrs["model"] == name


def refused(model, folder, texts=(IDS,), kind=ConfigError, **options):
    """The message (one line) of a refused request; checks that no trace is left and the model is
    unchanged."""
    before = logits(model)
    with pytest.raises(KvreplayError) as error:
        kvrecord.record_texts(model, texts, folder / "t.h5", **options)
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    assert not (folder / "t.h5").exists()
    assert torch.equal(logits(model), before)
    return str(error.value)


def test_a_text_for_a_model_without_tokenizer_is_refused_with_both_remedies(llama, tmp_path):
    says = refused(llama, tmp_path, TEXT)
    assert says == (
        "llama: the model was built here, not loaded: no tokenizer: pass tokenizer=, or lists of token "
        "ids in place of texts"
    )
    llama.save_pretrained(tmp_path / "bare")
    bare = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "bare")
    says = refused(bare, tmp_path, TEXT)
    assert says.startswith("bare: no tokenizer: cannot load bare: ")
    assert says.endswith(": pass tokenizer=, or lists of token ids in place of texts")
    assert "with_text" not in refused(bare, tmp_path, [IDS], with_text=True)
    kvrecord.record_texts(bare, [IDS], tmp_path / "t.h5")


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "texts: no prompt in this list"),
        (3, "texts: int: give a str, or a list of str or of lists of token ids"),
        (None, "texts: NoneType: give a str"),
        ({"a": "b"}, "texts: dict: give a str"),
        ([3, 4, 5], "texts: put the token ids of a prompt in a list of their own: [[1, 2, 3]]"),
        ([IDS, 4], "texts[1]: int: give a str"),
        ([IDS, []], "texts[1]: no tokens"),
        ([IDS, ""], "texts[1]: no text"),
        ([[3, -1]], "texts[0]: -1 is no token id: give a str, or a list of integers from 0 on"),
        ([[3, 4.0]], "texts[0]: 4.0 is no token id"),
        ([[3, True]], "texts[0]: True is no token id"),
        ([[3, "w"]], "texts[0]: 'w' is no token id"),
        ([PROMPT], "texts[0]: [7, "),
        ([[3, 64]], "texts[0]: token 64 is outside the vocabulary"),
        ([[3] * 257], "texts[0]: 257 tokens, the model has 256 positions: use --max-tokens"),
    ],
)
def test_invalid_texts_are_refused_with_their_place(llama, tmp_path, texts, says):
    found = refused(llama, tmp_path, texts)
    assert found.startswith(says.partition("[7, ")[0])
    assert says == "texts[0]: [7, " or says in found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": [0, 2]}, "layers 0,2: there are layers 0-1"),
        ({"layers": []}, "there are layers 0-1"),
        ({"layers": [0.5]}, "layers = [0.5]: give 'all', 'every:4' or a list of integers"),
        ({"layers": 1}, "layers = 1: give 'all'"),
        ({"layers": "some"}, "layers some: write all, 7, 15-29, a list such as 0,7,15-29, or every:4"),
        ({"max_tokens": 0}, "max_tokens = 0 is not an integer of at least 1"),
        ({"max_tokens": True}, "max_tokens = True is not an integer"),
        ({"generate": -1}, "generate = -1 is not an integer of at least 0"),
        ({"generate": 300}, "the model has 256 positions"),
        ({"query_stride": 1.5}, "query_stride = 1.5 is not an integer of at least 1"),
        ({"dtype": "float32"}, "dtype = 'float32': choose 'source', 'f32', 'f16' or 'bf16'"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name_and_value(llama, tmp_path, options, says):
    assert says in refused(llama, tmp_path, **options)


def test_a_trace_that_is_there_stays_unless_it_may_be_overwritten(llama, tmp_path):
    for out, file in (("t.h5", "t.h5"), ("dumps", "dumps/index.h5")):
        kvrecord.record_texts(llama, [IDS], tmp_path / out)
        before = (tmp_path / file).read_bytes()
        with pytest.raises(ConfigError) as error:
            kvrecord.record_texts(llama, [IDS[:5]], tmp_path / out)
        assert str(error.value) == f"{tmp_path / file} exists: pass overwrite=True, or another name"
        assert (tmp_path / file).read_bytes() == before
        path = kvrecord.record_texts(llama, [IDS[:5]], tmp_path / out, overwrite=True)
        with h5py.File(path) as trace:
            assert trace["prompts/0/tokens"].shape == (5,)
            assert trace["prompts/0/layers/001/k"].shape[1] == 5


def test_a_model_that_drops_at_random_is_refused_as_elsewhere(tmp_path):
    model = build("GPT2", resid_pdrop=0.5).train()
    with pytest.raises(KvreplayError, match=r"call model\.eval\(\)"):
        kvrecord.record_texts(model, [IDS], tmp_path / "t.h5")


def test_progress_goes_to_stderr_and_may_be_left_out(llama, tmp_path, capsys):
    kvrecord.record_texts(llama, [IDS], tmp_path / "loud.h5", verify=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert "1 prompt, 24 rows, 2 of 2 layers, f32" in said.err
    assert "prompt 0: 4/4" in said.err
    assert said.err.count("verify: prompt 0: ") == 5
    assert said.err.endswith("verify: all 5 checks passed\n")
    kvrecord.record_texts(llama, [IDS], tmp_path / "quiet.h5", verify=True, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_trace_that_does_not_agree_with_the_model_is_an_error(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("kvrecord.job.verify", lambda model, path: [Check("0", "rows", 1.0, 0.5)])
    says = r"t\.h5: the trace does not agree with the model: 1 of 1 checks FAILED: do not use it"
    with pytest.raises(KvreplayError, match=says):
        kvrecord.record_texts(llama, [IDS], tmp_path / "t.h5", verify=True)
    assert (tmp_path / "t.h5").exists()


def test_the_model_attends_as_before(loaded, tmp_path):
    implementation, before = loaded.config._attn_implementation, logits(loaded)
    kvrecord.record_texts(loaded, TEXTS, tmp_path / "t.h5", generate=2)
    assert loaded.config._attn_implementation == implementation
    assert torch.equal(logits(loaded), before)


def test_every_parameter_is_annotated_and_described():
    signature = inspect.signature(kvrecord.record_texts)
    for name, parameter in signature.parameters.items():
        assert parameter.annotation is not parameter.empty, name
        assert f"\n    {name}: " in kvrecord.record_texts.__doc__, name
    assert "record_texts" in dir(kvrecord)
