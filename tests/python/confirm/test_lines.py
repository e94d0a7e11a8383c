"""The retrieval probe: its prompts, their recording, and the definition of a correct answer."""

import json

import pytest

torch = pytest.importorskip("torch")

import kvrecord  # noqa: E402
from confirm_fixture import confirm, replay, rows, saved, tiny_llama, tokens_of, whole  # noqa: E402
from front_door import tasks  # noqa: E402
from kvbase.errors import ConfigError  # noqa: E402
from kvrecord.prompts import read_prompts  # noqa: E402
from kvtasks.lines import prompt  # noqa: E402

pytestmark = pytest.mark.torch


class Letters:
    """A tokenizer whose tokens are single characters."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}


def test_a_prompt_is_a_function_of_lines_number_and_seed():
    assert prompt(10, 3, seed=1) == prompt(10, 3, seed=1)
    others = [prompt(10, 4, seed=1), prompt(10, 3, seed=2), prompt(11, 3, seed=1)]
    assert all(other["text"] != prompt(10, 3, seed=1)["text"] for other in others)


@pytest.mark.parametrize("ask", ["after", "inside"])
def test_the_answer_is_only_in_the_queried_line(ask):
    one = prompt(40, 0, seed=0, ask=ask)
    assert one["text"].count("holds ") == 40
    asked = one["then"].splitlines()[-1]
    assert one["text"].count(f"{asked}{one['answer']}.\n") == 1
    assert one["text"].count(asked) == 1
    named = f"Once more, what {asked.replace('The', 'the')}, from the list above:\n"
    assert one["text"].endswith(named) == (ask == "inside")
    assert ("Once more" in one["text"]) == (ask == "inside")


def test_only_numbered_lines_are_queried():
    few = [prompt(20, number, seed=0, numbered=3) for number in range(20)]
    for one in few:
        assert one["text"].count(" holds ") == 3 and len(one["text"].splitlines()) == 21
        assert one["text"].count(f"{one['then'].splitlines()[-1]}{one['answer']}.\n") == 1
    places = {
        one["text"].splitlines().index(f"{one['then'].splitlines()[-1]}{one['answer']}.") for one in few
    }
    assert len(places) > 5


def test_lines_writes_prompts_that_kvdump_reads(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert tasks.main(["lines", "-o", str(path), "--lines", "2,5", "--count", "3"]) == 0
    prompts = read_prompts(path)
    assert [p.id for p in prompts][:4] == [
        "lines-0002-000",
        "lines-0002-001",
        "lines-0002-002",
        "lines-0005-000",
    ]
    assert tasks.main(["lines", "-o", str(tmp_path / "few.jsonl"), "--lines", "5", "--numbered", "2"]) == 0
    few = read_prompts(tmp_path / "few.jsonl")
    assert [len(few), few[-1].id] == [10, "lines-0005-numbers-0002-009"]
    assert few[0].text.count(" holds ") == 2
    first, then, answer = prompts[0].parts(Letters())
    assert first[0] == 1 and then[0] != 1 and answer[0] == ord(" ")
    assert len(answer) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lines", "10,x"], "--lines 10,x: a list such as 10,20,40"),
        (["--lines", "0"], "--lines takes 1..384"),
        (["--count", "0"], "--count at least 1"),
        (["--lines", "9,3", "--numbered", "4"], "--numbered 4: 1..3 of 3 lines hold a number"),
        (["--numbered", "0"], "--numbered 0: 1..10 of 10"),
    ],
)
def test_absurd_numbers_of_lines_are_refused(tmp_path, capsys, words, message):
    assert tasks.main(["lines", "-o", str(tmp_path / "x.jsonl"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()


def test_then_and_answer_must_be_text(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"text": "a", "answer": 3}) + "\n")
    with pytest.raises(ConfigError, match="`answer` must be a string"):
        read_prompts(path)


def test_a_folder_of_texts_is_a_prompt_each_named_after_its_file(tmp_path):
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "notes.md").write_text("no prompt")
    assert [(p.id, p.text) for p in read_prompts(tmp_path)] == [("a", "one"), ("b", "two")]


@pytest.mark.parametrize("text", [None, "  \n"])
def test_a_folder_without_text_is_refused(tmp_path, text):
    if text:
        (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ConfigError, match=r"no \.txt file|a\.txt is empty"):
        read_prompts(tmp_path)


# --- Answers of a tiny model ----------------------------------------------------------------------

PROMPT, ANSWER_FROM, TOTAL = 40, 60, 64


def greedy(model, ids):
    """ids [1, n] and their greedy continuation, TOTAL tokens in all."""
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        mask = torch.ones_like(ids)
        return model.generate(ids, attention_mask=mask, max_new_tokens=TOTAL - ids.shape[1], **options)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """(results, model folder, trace). Prompt "right" ends with the model's greedy answer, "wrong" with
    another last token. In "start" the answer's first token is wrong, and the model's continuation of it
    follows."""
    folder = tmp_path_factory.mktemp("answered")
    model = tiny_llama()
    asked = tokens_of(9)[:, :ANSWER_FROM]
    right = greedy(model, asked)
    wrong = right.clone()
    wrong[0, -1] = (wrong[0, -1] + 1) % 64
    start = greedy(model, torch.cat([asked, (right[:, ANSWER_FROM : ANSWER_FROM + 1] + 1) % 64], dim=1))
    trace = folder / "trace.h5"
    where = {"n_prompt": PROMPT, "n_generated": TOTAL - PROMPT, "answer_from": ANSWER_FROM}
    with kvrecord.record(model, trace) as recorder, torch.no_grad():
        for name, ids in (("right", right), ("wrong", wrong), ("start", start)):
            with recorder.prompt(name, where):
                model(input_ids=ids, use_cache=False)
    methods = [{"name": "exact"}, {"name": "window"}]
    out = replay(trace, folder / "out", methods, budget=4, replay={"prefill": "trace"})
    return out, saved(model, folder / "model"), trace


def test_an_answer_is_exact_where_greedy_decoding_writes_it(answered):
    out, model, trace = answered
    assert confirm(out, model, "--trace", trace) == 0
    right, wrong, start = (whole(out, prompt=name, method="exact")[0] for name in ("right", "wrong", "start"))
    assert (right["answer_exact_full"], right["answer_exact"], right["answer_rank"]) == ("1", "1", "1")
    assert (wrong["answer_exact_full"], wrong["answer_exact"]) == ("0", "0")
    assert int(wrong["answer_rank"]) > 1
    assert (start["answer_exact_full"], start["answer_exact"]) == ("0", "0")
    lost = whole(out, prompt="right", method="window")[0]
    assert lost["answer_exact_full"] == "1"
    assert float(lost["answer_logprob"]) < float(lost["answer_logprob_full"])
    assert (lost["answer_exact"] == "1") == (lost["answer_rank"] == "1")


def test_only_the_row_of_all_distances_holds_the_answer(answered):
    out, model, trace = answered
    confirm(out, model, "--trace", trace)
    parts = [row for row in rows(out, prompt="right", method="window") if row["distance_to"] == "16"]
    assert parts and all(row["answer_exact"] == "" for row in parts)


def test_an_answer_that_was_compressed_away_is_an_error(answered, tmp_path, capsys):
    out = replay(answered[2], tmp_path / "out", [{"name": "window"}], replay={"prefill": 61})
    assert confirm(out, answered[1], "--trace", answered[2]) == 2
    assert "its answer is tokens 60 to 63, the replay compressed 61 of 64" in capsys.readouterr().err
