"""Scores of answers, by hand."""

import pytest
from kvbase.errors import ConfigError, TraceError
from kvbase.shares import wilson
from kvtasks.scores import score
from kvtasks.self_test import table
from kvtrace.task import task_of

TWO = {"name": "t", "answers": ["4821937", "Tolvik"], "score": "all"}


@pytest.mark.parametrize(
    ("text", "every", "one"),
    [
        ("4821937 and Tolvik", 1.0, 1.0),
        ("it is 4821937.", 0.5, 1.0),
        ("tolVIK!", 0.5, 1.0),
        ("482193 7", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_a_score_is_the_share_of_answers_that_a_text_contains_or_whether_it_contains_one(text, every, one):
    assert score(text, TWO) == every
    assert score(text, TWO | {"score": "any"}) == one


def test_a_task_says_how_it_is_scored_or_all_answers_count():
    assert score("tolvik", {"answers": ["Tolvik", "Berrow", "Kelby", "Dray"]}) == 0.25


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "t", "answers": []}, "task t: no answers to score: give `answers`, a list of texts"),
        ({"name": "t", "answers": ["a"], "score": "best"}, "task t: score 'best' is not one of all, any"),
    ],
)
def test_a_task_that_cannot_be_scored_is_refused(task, message):
    with pytest.raises(ConfigError) as refused:
        score("a", task)
    assert str(refused.value) == message


def test_an_attribute_holds_a_task_or_is_refused():
    assert task_of(None) is None
    assert task_of('{"name": "t"}') == {"name": "t"}
    for damaged in ("[1]", "{", b"\xff"):
        with pytest.raises(TraceError, match="task_json holds no JSON object"):
            task_of(damaged)


def rows(task, *scores):
    return [{"task": task, "question": "aware", "correct": str(score)} for score in scores]


def test_the_table_keeps_tasks_of_four_fifths_and_reports_those_of_half():
    lines = table([*rows("a", 1, 1, 1, 1, 0), *rows("b", 1, 0.5, 0), *rows("c", 0.25, 0.25)])
    assert [line.split()[:4] for line in lines[1:]] == [
        ["a", "aware", "5", "80.0%"],
        ["b", "aware", "3", "50.0%"],
        ["c", "aware", "2", "25.0%"],
    ]
    assert [line.split("%")[-1].strip() for line in lines[1:]] == ["kept", "reported only", "out of rankings"]
    low, high = wilson(0.8, 5)
    assert f"{low:.1%}.. {high:.1%}" in lines[1]
