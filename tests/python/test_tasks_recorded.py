"""The recorder stores the task of a prompt and the tokens of its needles."""

import json

import h5py
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvreplay as kv
from front_door import record, tasks
from kvbase.errors import ConfigError, TraceError
from kvrecord.prompt_parts import task_attributes
from kvrecord.prompts import Prompt, read_prompts
from kvreplay_cli import kvreplay
from kvtasks.scores import score
from kvtrace.task import task_of
from tiny_letters import letters, letters_model

pytestmark = pytest.mark.torch


class Places:
    """A fast tokenizer that begins with BOS and whose tokens are words with the space before them."""

    is_fast = True
    bos_token_id, bos_token = 1, "<s>"

    def __init__(self, offsets, ids=None):
        self.offsets, self.ids = offsets, ids or [1, *range(10, 9 + len(offsets))]

    def __call__(self, text, return_offsets_mapping=True):
        return {"input_ids": self.ids, "offset_mapping": self.offsets}


def needle_tokens(prompt, tokenizer, n=100):
    said = []
    return task_attributes(prompt, list(range(n)), tokenizer, said.append).get("needle_tokens"), said


def asked(text, *spans):
    return Prompt("p", "p.jsonl:1", text=text, task={"needles": [list(span) for span in spans]})


def test_a_token_that_overlaps_a_needle_belongs_to_it():
    #        BOS     "ab"    " cd"   " ef"   " gh"
    places = Places([(0, 0), (0, 2), (2, 5), (5, 8), (8, 11)])
    prompt = asked("ab cd ef gh", (3, 8), (4, 6), (0, 1), (2, 3))
    found, said = needle_tokens(prompt, places)
    assert found.dtype == np.int32 and said == []
    assert found.tolist() == [[2, 4], [2, 4], [1, 2], [2, 3]]


def test_a_second_bos_that_is_dropped_moves_the_needle():
    twice = Places([(0, 0), (0, 3), (3, 5), (5, 8)], ids=[1, 1, 10, 11])
    assert needle_tokens(asked("<s>ab cd", (6, 8)), twice)[0].tolist() == [[2, 3]]


def test_a_needle_beyond_the_recorded_tokens_is_empty():
    places = Places([(0, 0), (0, 2), (2, 5), (5, 8), (8, 11)])
    assert needle_tokens(asked("ab cd ef gh", (3, 8), (9, 11)), places, n=3)[0].tolist() == [[2, 3], [3, 3]]


def test_a_tokenizer_without_places_is_said():
    slow = Places([(0, 0)])
    slow.is_fast = False
    found, said = needle_tokens(asked("ab", (0, 1)), slow)
    assert found is None
    assert said == ["p.jsonl:1: the tokenizer does not say where its tokens stand: no needle_tokens"]


def test_a_prompt_without_a_task_gets_no_attribute():
    assert task_attributes(Prompt("p", "p", text="ab"), [1], letters(), print) == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "abc", "task": ["x"]}, "`task` must be an object"),
        ({"text": "abc", "task": {"needles": [[0]]}}, "`task.needles` must be a list of"),
        ({"text": "abc", "task": {"needles": [[0, -1]]}}, "`task.needles` must be a list of"),
        ({"text": "abc", "task": {"needles": [[1, 4]]}}, r"\[1, 4\] is no part of a text of 3 characters"),
        ({"text": "abc", "task": {"needles": [[2, 2]]}}, r"\[2, 2\] is no part of a text of 3 characters"),
        ({"tokens": [1, 2], "task": {"needles": [[0, 1]]}}, "`task.needles` are characters of `text`"),
        ({"context": "abc", "questions": ["d"], "task": {}}, "`task` does not go with `context`"),
    ],
)
def test_a_damaged_task_is_refused(tmp_path, line, message):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=message):
        read_prompts(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(prompts, trace) of niah_multivalue with a tiny model."""
    folder = tmp_path_factory.mktemp("recorded")
    model, prompts, trace = letters_model(folder / "model"), folder / "set.jsonl", folder / "t.h5"
    made = ["make", "niah_multivalue,fwe", "--tokens", 900, "--count", 1, "--model", model]
    assert tasks.main([*made, "-o", prompts]) == 0
    assert record.main(["--model", model, "--prompts", prompts, "-o", trace, "--layers", "0"]) == 0
    return read_prompts(prompts), trace


def test_a_trace_holds_the_task_and_the_tokens_of_its_needles(recorded):
    prompts, path = recorded
    trace, tokenizer = kv.open(path), letters()
    for given in prompts:
        prompt = trace.prompt(given.id)
        assert prompt.task == given.task
        assert prompt.n_prompt == given.task["n_tokens"]
        if given.task["name"] == "fwe":
            assert prompt.needle_tokens is None
            continue
        assert prompt.needle_tokens.dtype == np.int32 and prompt.needle_tokens.shape == (4, 2)
        for (a, b), answer in zip(prompt.needle_tokens, given.task["answers"], strict=True):
            sentence = tokenizer.decode(prompt.token_ids[a:b])
            assert sentence.startswith("One of the special magic numbers") and sentence.endswith(f"{answer}.")
        answer = tokenizer.decode(prompt.token_ids[prompt.n_prompt :])
        assert answer.endswith(given.answer) and score(answer, prompt.task) == 1


def test_the_attributes_are_those_of_the_page_on_formats(recorded):
    with h5py.File(recorded[1]) as file:
        attributes = file["prompts/niah_multivalue-aware-0000"].attrs
        assert task_of(attributes["task_json"])["name"] == "niah_multivalue"
        assert attributes["needle_tokens"].dtype == np.int32


def test_the_engine_finds_the_trace_sound(recorded):
    assert kvreplay("validate", recorded[1]).stdout.endswith("a sound trace\n")


def test_a_trace_of_other_prompts_has_no_task(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"text": "some letters"}) + "\n")
    model = letters_model(tmp_path / "model")
    assert record.main(["--model", model, "--prompts", path, "-o", tmp_path / "t.h5"]) == 0
    prompt = kv.open(tmp_path / "t.h5").prompt()
    assert prompt.task is None and prompt.needle_tokens is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("task_json", "[1]", "task_json holds no JSON object"),
        ("needle_tokens", [1, 2], r"attribute needle_tokens must have the shape \[n, 2\]"),
    ],
)
def test_a_damaged_attribute_is_refused(recorded, tmp_path, name, value, message):
    path = tmp_path / "t.h5"
    path.write_bytes(recorded[1].read_bytes())
    with h5py.File(path, "r+") as file:
        file["prompts/fwe-aware-0000"].attrs[name] = value
    with pytest.raises(TraceError, match=message):
        _ = kv.open(path).prompt("fwe-aware-0000").task
