"""`kvreplay tasks make`: where needles stand, how long prompts are, and on what they depend."""

import json
import random
import re

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from front_door import tasks  # noqa: E402
from kvbase.errors import ConfigError  # noqa: E402
from kvrecord.prompts import read_prompts  # noqa: E402
from kvtasks.drafts import Needle, Wishes, joined, planted  # noqa: E402
from kvtasks.filling import most_units  # noqa: E402
from kvtasks.generators import TASKS  # noqa: E402
from kvtasks.haystacks import Haystack  # noqa: E402
from kvtasks.make import prompts_of  # noqa: E402
from kvtasks.pairs import PAIRS  # noqa: E402
from kvtasks.words import of_kind, single_words  # noqa: E402
from tiny_letters import letters, letters_model  # noqa: E402

pytestmark = pytest.mark.torch

N = 2600  # tokens, each of which is a letter here
WITHOUT_NEEDLES = ("cwe", "fwe")
WITH_NEEDLES = [name for name in TASKS if name not in WITHOUT_NEEDLES]


@pytest.fixture(scope="module")
def tokenizer():
    return letters()


@pytest.fixture(scope="module")
def made(tokenizer):
    """{task: prompt 0 of each way to ask}."""
    return {name: prompts_of(name, 0, 0, Wishes(N), tokenizer) for name in TASKS}


def needles(prompt):
    return [prompt["text"][start:end] for start, end in prompt["task"]["needles"]]


# --- Needles in a text ------------------------------------------------------------------------------


def test_a_needle_stands_at_the_boundary_that_is_nearest_to_its_depth():
    units = ["Aaaa. ", "Bbbb. ", "Cccc. ", "Dddd. "]  # boundaries at 0, 0.25, 0.5, 0.75, 1
    for depth, expected in [
        (0, "N. Aaaa. Bbbb. Cccc. Dddd."),
        (0.3, "Aaaa. N. Bbbb. Cccc. Dddd."),
        (0.6, "Aaaa. Bbbb. N. Cccc. Dddd."),
        (1, "Aaaa. Bbbb. Cccc. Dddd. N."),
    ]:
        passage = planted(units, [Needle("N.", depth)])
        assert passage.text == expected
        assert passage.needles == ((expected.index("N."), expected.index("N.") + 2),)


def test_spans_are_those_of_needed_needles_in_the_order_in_which_they_are_given():
    passage = planted(["A. ", "B. "], [Needle("late.", 1), Needle("no.", 0.5, False), Needle("early.", 0)])
    assert passage.text == "early. A. no. B. late."
    assert [passage.text[a:b] for a, b in passage.needles] == ["late.", "early."]
    assert passage.depths == [round(17 / 22, 4), 0]


def test_the_first_sentences_do_not_depend_on_how_many_follow():
    for kind in ("essay", "sentences", "words"):
        grown = Haystack(kind, random.Random(3))
        first = grown.first(5)
        assert grown.first(2000)[:5] == first == Haystack(kind, random.Random(3)).first(2000)[:5]
        assert len(grown.first(2000)) == 2000


def test_the_longest_context_that_fits_is_found():
    def passage(n):
        return planted(["abc "] * n, [])

    for most in (3, 4, 39, 40, 41, 1000):
        found = most_units(passage, lambda one: len(one.text), most, "t")
        assert len(found.text) == 4 * ((most + 1) // 4) - 1
    with pytest.raises(ConfigError, match="--tokens 2: the shortest prompt of t has 3: give more"):
        most_units(passage, lambda one: len(one.text), 2, "t")
    with pytest.raises(ConfigError, match="--tokens 99: the longest prompt of t has 31: give fewer"):
        most_units(lambda n: passage(min(n, 8)), lambda one: len(one.text), 99, "t")


def test_values_are_distinct_and_of_their_kind():
    for kind, form in [
        ("words", r"[a-z]+-[a-z]+"),
        ("numbers", r"[1-9]\d{6}"),
        ("uuids", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
    ]:
        found = of_kind(kind, 200, random.Random(0))
        assert len(set(found)) == 200
        assert all(re.fullmatch(form, value) for value in found)
    assert len(set(single_words(1500, random.Random(0)))) == 1500
    assert [joined(values) for values in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


# --- Prompts of every task --------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_a_prompt_is_filled_up_to_its_length(made, name):
    aware, agnostic = made[name]
    longest_unit = 230  # letters of a sentence or a document
    assert N - longest_unit < len(aware["text"]) <= N
    assert aware["task"]["n_tokens"] == len(aware["text"])
    assert agnostic["task"]["n_tokens"] == len(agnostic["text"])
    assert aware["task"]["length"] == N


@pytest.mark.parametrize("name", TASKS)
def test_both_ways_to_ask_share_the_context_and_the_whole_prompt(made, name):
    aware, agnostic = made[name]
    assert aware["text"].startswith(agnostic["text"])
    assert aware["text"] + aware["then"] == agnostic["text"] + agnostic["then"]
    assert aware["text"].endswith("[/user]\n[assistant]\n")
    assert agnostic["text"].startswith("[user]\n") and "[/user]" not in agnostic["text"]
    assert agnostic["text"].endswith("\n\n")
    assert [aware["id"], agnostic["id"]] == [f"{name}-aware-0000", f"{name}-agnostic-0000"]
    assert (aware["task"]["question"], agnostic["task"]["question"]) == ("aware", "agnostic")


@pytest.mark.parametrize("name", WITH_NEEDLES)
def test_the_needles_of_a_task_hold_its_answers_and_the_rest_of_the_context_does_not(made, name):
    for prompt in made[name]:
        task, sentences = prompt["task"], needles(prompt)
        assert all(any(answer in sentence for sentence in sentences) for answer in task["answers"])
        assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)
        assert len(task["depths"]) == len(sentences)
        assert prompt["answer"] == " " + ", ".join(task["answers"])
        if name != "qa":  # other people may have the asked person's trade
            rest = prompt["text"]
            for sentence in sentences:
                rest = rest.replace(sentence, "")
            assert not any(answer in rest for answer in task["answers"])


def test_the_chain_of_variables_leads_from_the_value_to_each_answer(made):
    (aware, _) = made["vt"]
    task, held = aware["task"], {}
    for sentence in needles(aware):  # in order: a variable is assigned before it is read
        name, given = re.fullmatch(r"VAR (\w+) = (?:VAR )?(\w+)\.", sentence).groups()
        held[name] = held.get(given, given)
    assert held == dict.fromkeys(task["answers"], task["value"])
    starts = [start for start, _ in task["needles"]]
    assert starts == sorted(starts) and len(starts) == task["hops"] + 1
    assert f"{len(held)} variables are assigned the value {task['value']}" in aware["then"]


def test_values_of_one_key_are_answered_in_the_order_of_the_text(made):
    starts = [start for start, _ in made["niah_multivalue"][0]["task"]["needles"]]
    assert starts == sorted(starts) and len(starts) == 4


def test_common_words_are_those_that_the_list_repeats_most_often(made):
    aware = made["cwe"][0]
    listed = re.findall(r"\d+\. (\S+)", aware["text"])
    counts = {word: listed.count(word) for word in listed}
    times, others = aware["task"]["times"], aware["task"]["times_of_others"]
    assert {word for word, count in counts.items() if count == times} == set(aware["task"]["answers"])
    assert set(counts.values()) == {times, others} and times >= 3 * others


def test_frequent_words_are_the_three_most_frequent_ones_besides_the_noise(made):
    aware = made["fwe"][0]
    words = re.findall(r"(?<= )[a-z]{6}(?= )", aware["text"].split("\n\n")[1])
    counts = sorted(((words.count(word), word) for word in set(words)), reverse=True)
    assert [word for _, word in counts[:3]] == aware["task"]["answers"]
    assert counts[2][0] > counts[3][0]


def test_the_document_of_the_asked_person_answers_the_question(made):
    aware = made["qa"][0]
    (sentence,) = needles(aware)
    person = " ".join(re.search(r"([A-Z]\w+) ([A-Z]\w+)", sentence).groups())
    assert f" {person}" in aware["text"].split("Question:")[1]
    assert aware["text"].count(f": {person}\n") == 1
    numbers = [int(number) for number in re.findall(r"Document (\d+):", aware["text"])]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 5


def test_thousands_of_documents_are_those_of_different_people():
    quiz = TASKS["qa"].draw(random.Random(0), Wishes(N))
    names = re.findall(r"Document \d+: (.*)", quiz.passage(5000).text)
    assert len(set(names)) == len(names) == 5001
    (asked,) = (name for name in names if f" {name}" in quiz.question)
    assert asked in names


LITTLE = {
    *("a", "an", "and", "as", "at", "been", "for", "from", "has", "have", "his", "in", "is", "it"),
    *("like", "likes", "on", "or", "that", "the", "to", "with", "works"),
}


def test_a_question_of_a_pair_shares_no_content_word_with_its_sentence():
    assert len(PAIRS) >= 30 and len({pair.group for pair in PAIRS}) == len(PAIRS)
    for pair in PAIRS:
        said, asked = (set(re.findall(r"[a-z]+", text.lower())) - LITTLE for text in (pair.said, pair.asked))
        alike = {a for a in said for b in asked if a[:4] == b[:4]}
        assert not alike - {"lives"}, pair


# --- What a prompt depends on -------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_a_prompt_depends_on_its_arguments_alone(made, tokenizer, name):
    assert prompts_of(name, 0, 0, Wishes(N), tokenizer) == made[name]
    assert prompts_of(name, 0, 0, Wishes(N), tokenizer, ("agnostic",)) == made[name][1:]
    others = [prompts_of(name, number, seed, Wishes(N), tokenizer)[0] for number, seed in ((1, 0), (0, 1))]
    assert len({made[name][0]["text"], *(other["text"] for other in others)}) == 3


@pytest.mark.parametrize("name", WITH_NEEDLES)
def test_a_needle_stands_where_it_is_wanted(tokenizer, name):
    for depth in (0, 0.3, 0.8, 1):
        aware = prompts_of(name, 0, 0, Wishes(N, depth=depth), tokenizer)[0]["task"]
        nearest = min(abs(found - depth) for found in aware["depths"])
        assert nearest < 0.1, aware["depths"]


def test_kinds_of_keys_values_and_haystacks_are_as_wanted(tokenizer):
    wishes = Wishes(N, keys="uuids", values="words", haystack="sentences")
    (aware, _) = prompts_of("niah_multikey", 0, 0, wishes, tokenizer)
    assert re.fullmatch(r"[a-z]+-[a-z]+", aware["task"]["answers"][0])
    assert re.fullmatch(r"[0-9a-f-]{36}", aware["task"]["keys"][0])
    assert (
        "There and back again." in aware["text"] and "special magic word for" in aware["then"] + aware["text"]
    )
    assert aware["task"]["haystack"] == "sentences" and aware["task"]["n_needles"] == 4


def test_a_model_without_a_chat_template_gets_plain_text():
    plain = letters(template=None)
    aware, agnostic = prompts_of("niah_single", 0, 0, Wishes(N), plain)
    assert aware["text"].startswith("Some special magic numbers")
    assert aware["text"].endswith(" mentioned in the provided text?\n")
    assert agnostic["text"] + agnostic["then"] == aware["text"] + aware["then"]


@pytest.mark.parametrize("template", ["{{ messages[0]['role'] }}", "{{ c }}{{ c }}"])
def test_a_template_that_changes_the_text_is_refused(template):
    template = "{% set c = messages[0]['content'] %}" + template
    with pytest.raises(ConfigError, match="chat template changes the user's text"):
        prompts_of("vt", 0, 0, Wishes(N), letters(template=template))


# --- The command ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return letters_model(tmp_path_factory.mktemp("letters"))


def test_the_command_writes_prompts_that_the_recorder_reads(model, tmp_path):
    path = tmp_path / "new" / "set.jsonl"
    words = ["make", "niah_single,qa", "--tokens", N, "--count", 3, "--model", model, "--depth", "0.2,0.9"]
    assert tasks.main([*words, "-o", path]) == 0
    prompts = read_prompts(path)
    assert [prompt.id for prompt in prompts[:3]] == [
        "niah_single-aware-0000", "niah_single-agnostic-0000", "niah_single-aware-0001",
    ]  # fmt: skip
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 12
    depths = [prompt.task["depths"][0] for prompt in prompts[:6:2]]
    assert depths == pytest.approx([0.2, 0.9, 0.2], abs=0.1)
    first = path.read_text()
    assert tasks.main([*words, "-o", path]) == 0
    assert path.read_text() == first


def test_the_list_names_every_task_in_a_line(capsys):
    assert tasks.main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(TASKS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["niah_singel"], "unknown task 'niah_singel' (did you mean niah_single?): kvreplay tasks list"),
        (["vt,vt"], "vt,vt: a task is named twice"),
        (["vt", "--count", "0"], "--count 0: 1..10000 prompts of each task"),
        (["vt", "--tokens", "0"], "--tokens 0: at least 1"),
        (["vt", "--tokens", "80"], "--tokens 80: the shortest prompt of vt has "),
        (["vt", "--depth", "0.1,x"], "--depth 0.1,x: a list such as 0.1,0.5,0.9"),
        (["vt", "--depth", "2"], "--depth 2: depths are 0 (the beginning) to 1 (the end)"),
        (["vt", "-o", "set.txt"], "set.txt: -o takes the name of a .jsonl file"),
        (["vt", "-o", "there.txt/set.jsonl"], "there.txt is a file, not a folder: choose another -o"),
    ],
)
def test_absurd_wishes_are_refused(model, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.txt").touch()
    usual = ["make", "--tokens", "900", "--model", str(model), "-o", "set.jsonl"]
    assert tasks.main([*usual, *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there.txt"]


def test_the_self_test_answers_each_prompt_once(model, tmp_path, capsys):
    path = tmp_path / "set.jsonl"
    made = ["make", "niah_single", "--tokens", 500, "--count", 2, "--model", model]
    assert tasks.main([*made, "-o", path]) == 0
    words = ["test", path, "--model", model, "--generate", 3]
    assert tasks.main(words) == 0
    said = capsys.readouterr()
    assert "4 prompts, 0 finished before" in said.err
    assert [line.split()[:3] for line in said.out.splitlines()[2:4]] == [
        ["niah_single", "aware", "2"],
        ["niah_single", "agnostic", "2"],
    ]
    table = tmp_path / "set.test.csv"
    lines = table.read_text().splitlines()
    assert lines[0].startswith("id,task,question,correct,text") and len(lines) >= 5
    table.write_text("\n".join(lines[:3]) + "\n")
    assert tasks.main(words) == 0
    assert "4 prompts, 2 finished before" in capsys.readouterr().err
    assert table.read_text().splitlines() == lines


def test_the_self_test_needs_tasks(model, tmp_path, capsys):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"text": "abc"}) + "\n")
    assert tasks.main(["test", path, "--model", model]) == 2
    assert "prompt 0 has no `task`" in capsys.readouterr().err
