"""A study over models: its configuration, its commands, and the ranking of measures."""

import numpy as np
import pandas as pd
import pytest
from kvanalysis.errors import StudyError
from kvanalysis.study.config import read_study
from kvanalysis.study.drive import engine_text, finished, run_study
from kvanalysis.study.places import Place, places_of
from kvanalysis.study.ranks import ceiling, first_choice, leave_one_out, rank_of, rank_table, summary

STUDY = """
schema: 1
kind: study
models:
  - {name: one, model: some/id}
  - {name: two, gguf_file: two.gguf}
texts: [texts]
record: {max_tokens: 40}
run: {replay: {prefill: 32}, methods: [h2o], budget: {tokens: [8]}}
"""


@pytest.fixture
def study_file(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("one text")
    (tmp_path / "two.gguf").write_bytes(b"GGUF")
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    return file


def test_a_study_names_models_texts_and_what_is_replayed(study_file, tmp_path):
    study = read_study(study_file)
    assert [model.name for model in study.models] == ["one", "two"]
    assert study.models[1].words == ("--gguf-file", str(tmp_path / "two.gguf"))
    assert [text.name for text in study.texts] == ["a.txt"]
    assert (study.record["max_tokens"], study.record["samples"]) == (40, 8)
    assert [model.name for model in read_study(study_file, only=("two",)).models] == ["two"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("kind: study", "kind: sweep"), "write `kind: study`"),
        (("texts: [texts]", "texts: [nowhere]"), "no .txt file there"),
        (("max_tokens: 40", "tokens: 40"), "record: its keys are max_tokens"),
        (("name: two", "name: one"), "one occurs twice"),
        (("model: some/id", "modle: some/id"), "write {name: N, model: ID}"),
        (("two.gguf", "three.gguf"), "three.gguf; name its folder with --files"),
        (("methods: [h2o], ", ""), "run: write a configuration"),
        (("schema: 1", "schema: [1"), "cannot be read"),
    ],
)
def test_a_mistake_in_a_study_is_named(study_file, change, says):
    study_file.write_text(STUDY.replace(*change))
    with pytest.raises(StudyError) as raised:
        read_study(study_file)
    assert says in str(raised.value)


def test_a_dry_run_prints_the_commands_of_every_model(study_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KVREPLAY", "/bin/true")
    run_study(read_study(study_file), tmp_path / "out", dry=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert "-m kvreplay record --model some/id" in lines[0] and "--max-tokens 40" in lines[0]
    assert lines[1].startswith("/bin/true run ")
    assert "-m kvreplay confirm" in lines[5] and lines[5].endswith(f"--gguf-file {tmp_path / 'two.gguf'}")
    assert not (tmp_path / "out").exists()


def test_the_engines_configuration_holds_the_trace_and_saves_what_the_study_needs(study_file, tmp_path):
    study = read_study(study_file)
    text = engine_text(study, tmp_path / "one")
    assert f"- {tmp_path / 'one/trace.h5'}" in text
    assert "- kept" in text and "- projections" in text and "prefill: 32" in text


def test_a_step_that_fails_ends_the_study_with_its_code(study_file, tmp_path, monkeypatch):
    monkeypatch.setattr("kvanalysis.study.drive._commands", lambda *_: [["sh", "-c", "exit 3"]])
    with pytest.raises(StudyError, match="ended with exit code 3; run again to continue") as raised:
        run_study(read_study(study_file), tmp_path / "out", say=lambda line: None)
    assert raised.value.exit_code == 3
    with pytest.raises(StudyError, match="no model of the study is confirmed"):
        finished(read_study(study_file), tmp_path / "out")


def test_texts_of_another_study_are_not_mixed_in(study_file, tmp_path):
    (tmp_path / "out/texts").mkdir(parents=True)
    (tmp_path / "out/texts/b.txt").write_text("another")
    with pytest.raises(StudyError, match=r"texts of another study \(b.txt\)"):
        run_study(read_study(study_file), tmp_path / "out", say=lambda line: None)


# --- Ranks ----------------------------------------------------------------------------------------

METHODS = np.array(["a", "b", "c", "d", "e"])


def place(model, text, measured, **values):
    return Place(model, text, "8 tokens", METHODS, np.array(measured, float), {
        name: np.array(of, float) for name, of in values.items()
    })  # fmt: skip


RIGHT, WRONG = [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]


def test_the_rank_correlation_of_each_measure_at_each_place():
    table = rank_table([place("m", "t", RIGHT, good=[1, 4, 9, 16, 25], bad=WRONG, near=[2, 1, 3, 4, 5])])
    assert dict(zip(table["measure"], table["spearman"], strict=True)) == pytest.approx(
        {"good": 1, "bad": -1, "near": 0.9}
    )
    shown = summary(table, ["bad", "near", "good"])
    assert list(shown.index) == ["bad", "near", "good"] and shown.at["near", "m"] == pytest.approx(0.9)


def test_the_measure_of_a_held_out_model_is_chosen_by_the_others():
    places = [place(m, "t", RIGHT, simple=[2, 1, 3, 4, 5], other=RIGHT) for m in ("p", "q")]
    places.append(place("r", "t", RIGHT, simple=RIGHT, other=WRONG))
    held = {each.model: each for each in leave_one_out(rank_table(places), ["simple", "other"])}
    # p and q choose the measure that is correct on both; it fails on r.
    assert (held["r"].chosen, held["r"].spearman) == ("other", pytest.approx(-1))
    assert (held["r"].best, held["r"].best_spearman) == ("simple", pytest.approx(1))
    # p is judged by the choice of q (other: 1) and r (other: -1), which is the simple measure.
    assert held["p"].chosen == "simple"


def test_among_equal_measures_the_simplest_is_chosen():
    places = [place(m, "t", RIGHT, first=RIGHT, second=RIGHT) for m in ("p", "q")]
    assert [each.chosen for each in leave_one_out(rank_table(places), ["first", "second"])] == ["first"] * 2


def test_the_ceiling_is_how_far_two_texts_of_a_model_agree():
    places = [place("m", "s", RIGHT), place("m", "t", [2, 1, 3, 4, 5]), place("n", "s", RIGHT)]
    assert ceiling(places) == pytest.approx({"m": 0.9})


def test_the_rank_of_a_method_by_the_model_and_by_a_measure():
    places = [place("m", "s", RIGHT, bad=WRONG), place("m", "t", WRONG, bad=WRONG)]
    assert rank_of(places, "a") == {"m": 3}
    assert rank_of(places, "a", "bad") == {"m": 5}


def test_the_first_by_a_measure_is_rated_by_its_loss():
    """By `bad`, e is first: it costs 5 times the lowest loss, and 1 time where the model agrees; on the whole
    sqrt(5)."""
    places = [
        place("m", "s", RIGHT, bad=WRONG),
        place("m", "t", WRONG, bad=WRONG),
        place("n", "s", RIGHT, bad=RIGHT),
    ]
    found = first_choice(places, "bad")
    assert (found.right, found.places) == (2, 3)
    assert found.excess == pytest.approx({"m": 5**0.5, "n": 1})


def test_methods_are_ranked_at_budgets_and_between_them_at_equal_bytes():
    rows = [
        {"prompt": "t", "label": label, "budget_tokens": budget, "share": share, "kl_mean": loss}
        for number, label in enumerate(METHODS)
        for budget, share, loss in ((64, 0.05, 4.0 + number), (256, 0.2, 1.0 + number))
    ]
    table = pd.DataFrame(rows)
    places = {each.name: each for each in places_of("m", table, {"x": table["kl_mean"].to_numpy() * 2})}
    assert set(places) == {"64 tokens", "256 tokens", "10% of the bytes", "20% of the bytes"}
    # Halfway on a logarithmic scale: losses of 4 at 5 % and 1 at 20 % give 2 at 10 %; 40 % was not replayed.
    assert places["10% of the bytes"].measured[0] == pytest.approx(2)
    assert places["10% of the bytes"].values["x"][0] == pytest.approx(4)
    assert list(places["64 tokens"].measured) == [4, 5, 6, 7, 8]
