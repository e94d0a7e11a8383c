"""Messages on the command line: the segments of a conversation, by hand from its chat template."""

import json

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from front_door import record as cli  # noqa: E402
from kvbase.errors import ConfigError  # noqa: E402
from kvrecord.turns import INPUT, OUTPUT, Segments, conversation  # noqa: E402
from tiny_model_folder import saved, tokenizer, words_for  # noqa: E402
from tokenizers import Regex, Tokenizer, models, pre_tokenizers  # noqa: E402

pytestmark = pytest.mark.torch

OK, USAGE = 0, 2
# A message is w50 CONTENT w51, and w50 w52 asks for an answer; an assistant's message begins with w50 w52.
TEMPLATE = (
    "{% for m in messages %}{{ 'w50 ' }}{% if m.role == 'assistant' %}{{ 'w52 ' }}{% endif %}"
    "{{ m.content.split('w60')[-1] | trim }}{{ ' w51 ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w50 w52' }}{% endif %}"
)
SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


def said(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def words_of_chat():
    words = tokenizer()
    words.chat_template = TEMPLATE
    return words


TALK = said((SYSTEM, "w3"), (USER, "w4 w5"), (ASSISTANT, "w6 w7 w8"), (USER, "w9"))
# w50 w3 w51 | w50 w4 w5 w51 w50 w52 | w6 w7 w8 | w51 w50 w9 w51 w50 w52
TALK_IDS = [50, 3, 51, 50, 4, 5, 51, 50, 52, 6, 7, 8, 51, 50, 9, 51, 50, 52]


@pytest.mark.parametrize(
    ("messages", "ids", "start", "kind"),
    [
        (said((USER, "w4")), [50, 4, 51, 50, 52], [0, 5], [1]),
        # The system's message ends with its content: the text behind it belongs to the input that follows.
        (TALK, TALK_IDS, [0, 2, 9, 12, 18], [0, 1, 2, 1]),
        # The text behind the last answer is left out: no input follows, and no model has read it.
        (TALK[:3], TALK_IDS[:12], [0, 2, 9, 12], [0, 1, 2]),
        # The template drops what the assistant said before w60: the recorded tokens decide.
        (said((USER, "w4"), (ASSISTANT, "w5 w60 w6")), [50, 4, 51, 50, 52, 6], [0, 5, 6], [1, 2]),
        # An empty message has no tokens of its own.
        (said((USER, "w4"), (ASSISTANT, ""), (USER, "w5")), [50, 4, 51, 50, 52, 51, 50, 5, 51, 50, 52],
         [0, 5, 11], [1, 1]),
        # Two messages of the user are two inputs.
        (said((USER, "w4"), ("tool", "w5")), [50, 4, 51, 50, 5, 51, 50, 52], [0, 2, 8], [1, 1]),
    ],
)  # fmt: skip
def test_messages_are_split_where_they_begin_and_end(messages, ids, start, kind):
    found, segments = conversation(messages, words_of_chat(), "p.jsonl:1")
    assert found == ids
    assert (segments.start, segments.kind) == (start, kind)


def straddling(template):
    """A tokenizer that reads several characters at once: "ab" is one token."""
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "ab": 3, "ba": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("ab|ba|a|b"), "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    fast.chat_template = template
    return fast


def test_a_token_across_a_border_belongs_to_the_input():
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    # bba | b | a: the token "ba" spans the end of the output and the beginning of the second input.
    messages = said((USER, "bb"), (ASSISTANT, "aabb"), (USER, "aa"))
    ids, segments = conversation(messages, straddling(plain), "p")
    assert ids == [2, 4, 3, 4, 1]  # b ba ab ba a
    # "ba" holds the end of the first input and the beginning of the output; so does the second one.
    assert (segments.start, segments.kind) == ([0, 2, 3, 5], [1, 2, 1])


def test_what_a_template_hides_is_refused_with_a_remedy():
    words = tokenizer()
    words.chat_template = "{{ messages[0].content }}"
    with pytest.raises(
        ConfigError, match=r"p:1: the chat template changes the text around message 1.*`text`"
    ):
        conversation(said((USER, "w3"), (ASSISTANT, "w4")), words, "p:1")
    with pytest.raises(ConfigError, match=r"p:1: `messages` begin with the assistant's"):
        conversation(said((ASSISTANT, "w4"), (USER, "w3")), words_of_chat(), "p:1")


def test_what_the_model_adds_is_one_output():
    asked = Segments([0, 4], [INPUT], ["user"])
    assert asked.with_output(7) == Segments([0, 4, 7], [INPUT, OUTPUT], ["user", "assistant"])
    assert asked.with_output(7).with_output(9).start == [0, 4, 9]
    assert asked.with_output(4) is asked
    assert Segments([0, 4, 6], [INPUT, INPUT], ["a", "b"]).cut(4) == Segments([0, 4], [INPUT], ["a"])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = saved(tmp_path_factory.mktemp("llama"))
    words_of_chat().save_pretrained(folder)
    return folder


def recorded(folder, model, *options, **entry):
    (folder / "p.jsonl").write_text(json.dumps({"id": "p0", "messages": TALK} | entry))
    assert cli.main(words_for(model, folder / "p.jsonl")(folder / "t.h5", "--verify", *options)) == OK
    with h5py.File(folder / "t.h5") as file:
        prompt = file["prompts/p0"]
        group = prompt["segments"]
        assert group["start"].dtype == np.int32 and group["kind"].dtype == np.uint8
        lengths = (int(prompt.attrs["n_prompt"]), int(prompt.attrs["n_generated"]))
        names = json.loads(group.attrs["names"])
        return (
            prompt["tokens"][...].tolist(),
            group["start"][...].tolist(),
            group["kind"][...].tolist(),
            names,
            lengths,
        )


def test_a_recorded_conversation_says_where_its_turns_begin(llama, tmp_path):
    tokens, start, kind, names, lengths = recorded(tmp_path, llama)
    assert tokens == TALK_IDS
    assert (start, kind) == ([0, 2, 9, 12, 18], [0, 1, 2, 1])
    assert names == ["system", "user", "assistant", "user"]
    assert lengths == (9, 9)


def test_a_missing_last_answer_is_generated_on_demand(llama, tmp_path):
    tokens, start, kind, _, lengths = recorded(tmp_path, llama, "--generate", "5", "--ignore-eos")
    assert tokens[:18] == TALK_IDS and len(tokens) == 22
    assert (start, kind) == ([0, 2, 9, 12, 18, 22], [0, 1, 2, 1, 2])
    assert lengths == (9, 13)


def test_an_answer_that_is_given_is_not_generated_again(llama, tmp_path):
    tokens, start, _, _, lengths = recorded(tmp_path, llama, "--generate", "5", messages=TALK[:3])
    assert tokens == TALK_IDS[:12] and start == [0, 2, 9, 12] and lengths == (9, 3)


def test_an_answer_for_probes_is_an_output(llama, tmp_path):
    _, start, kind, _, lengths = recorded(tmp_path, llama, messages=TALK[:2], answer="w11 w12")
    assert (start, kind) == ([0, 2, 9, 11], [0, 1, 2])
    assert lengths == (9, 2)


def test_max_tokens_cuts_an_input_and_no_conversation(llama, tmp_path, capsys):
    tokens, start, kind, _, lengths = recorded(tmp_path, llama, "--max-tokens", "6", messages=TALK[:2])
    assert tokens == TALK_IDS[:6] and (start, kind) == ([0, 2, 6], [0, 1]) and lengths == (6, 0)
    (tmp_path / "p.jsonl").write_text(json.dumps({"messages": TALK}))
    words = words_for(llama, tmp_path / "p.jsonl")(tmp_path / "u.h5", "--max-tokens", "12")
    assert cli.main(words) == USAGE
    assert "--max-tokens would cut the messages" in capsys.readouterr().err
