"""Wrong figure configurations and half-finished folders of figures each give a message of one line."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from kvanalysis.drawing.saving import FigureResult
from kvanalysis.errors import FigureError
from kvanalysis.figures import make, steps
from kvanalysis.figures.config import read_figure_config
from kvanalysis.figures.steps import RunOptions, run_steps
from kvreplay.program import main

GOOD = {"kind": "method_dots", "paper": "H2O", "number": "Fig. 0", "mark": "P", "title": "t", "expect": "e"}
ANCHORS = [("a", "x"), ("b", "*a"), ("c", "*b"), ("d", "*c"), ("e", "*d"), ("f", "*e")]
TIMES_SIX = [f"{name}: &{name} [{', '.join([value] * 6)}]" for name, value in ANCHORS]
BOMB = f"steps: [{{run: {{{', '.join(TIMES_SIX)}}}}}]"


def written(folder, figure=None, **content):
    path = folder / "odd.yaml"
    path.write_text(yaml.safe_dump(content | {"figure": GOOD | (figure or {})}))
    return path


def refusal(path):
    with pytest.raises(FigureError) as caught:
        read_figure_config(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("content", [b"name: \xe9", b"[" * 5000, b"", b"a: 1\n---\nb: 2", b"? [1]\n: 2"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    assert str(path) in refusal(path)


@pytest.mark.parametrize("name", ["../up", "/tmp/elsewhere", "", ".", "..", "a\nb", ["a"], None, {}])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    assert "is not a file name" in refusal(written(tmp_path, name=name))
    assert "is not a file name" in refusal(written(tmp_path, {"steps": [{"run": {}, "as": name}]}))


@pytest.mark.parametrize("traces", ["a.h5", 3, None, {"a": "b"}, [None], [3]])
def test_traces_are_a_list_of_files(tmp_path, traces):
    assert "is not a list of files; write [FILE.h5]" in refusal(written(tmp_path, traces=traces))


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ({"mark": ["R"]}, "figure.mark must be text"),
        ({"title": {"a": 1}}, "figure.title must be text"),
        ({"bogus": 1, 7: 2}, "unknown key 7"),
        ({"steps": [{"cluster": "--tokens '3"}]}, "No closing quotation"),
        ({"steps": [{"run": {"replay.tokens": b"hi"}}]}, "not JSON serializable"),
        ({"quick": {"replay.tokens": b"hi"}}, "figure.quick: Object of type bytes"),
        ({"steps": None}, "is not a step"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, figure, says):
    assert says in refusal(written(tmp_path, figure))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (BOMB, "is too long; do YAML anchors repeat"),
        ("steps: [{run: &o {methods: [*o]}}]", "Circular reference"),
    ],
)
def test_anchors_that_repeat_each_other_are_refused(tmp_path, more, says):
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump({"figure": GOOD}) + f"  {more}\n")
    assert says in refusal(path)


@pytest.mark.parametrize(
    "rows", [[], [1], [[1], ["a", "b"]], [[float("nan")]], [[1], [float("inf"), 0.5]], ["ab"]]
)
def test_written_rows_that_are_no_probabilities_are_refused(tmp_path, rows):
    config = read_figure_config(written(tmp_path, {"steps": [{"toy": rows, "as": "made"}]}))
    with pytest.raises(FigureError, match="step made: row"):
        run_steps(config, tmp_path / "out", RunOptions())
    assert not (tmp_path / "out/made.h5").exists()


@dataclass
class Program:
    """Replaces kvreplay: writes the files of a cluster step, and counts calls."""

    calls: int = 0
    without_table: bool = False

    def __call__(self, _config, _step, words):
        self.calls += 1
        file = Path(words[words.index("-o") + 1])
        file.write_text("h5")
        file.with_suffix(".csv").write_text("csv")


def test_a_survey_is_repeated_if_its_trace_or_table_changed(tmp_path, monkeypatch):
    program = Program()
    monkeypatch.setattr(steps, "_call", program)
    trace = tmp_path / "trace.h5"
    trace.write_text("one")
    config = read_figure_config(written(tmp_path, {"steps": ["cluster"]}))

    def calls():
        run_steps(config, tmp_path / "out", RunOptions((trace,)))
        return program.calls

    assert (calls(), calls()) == (1, 1)
    trace.write_text("other")
    assert (calls(), calls()) == (2, 2)
    (tmp_path / "out/cluster.csv").unlink()
    assert calls() == 3
    (tmp_path / "out/cluster.made_by.json").write_text('{"words": [')
    assert calls() == 4


def test_a_failed_redraw_removes_old_verdicts(tmp_path, monkeypatch):
    """A page must not show verdicts of an earlier run next to pictures of a later one."""
    monkeypatch.setattr(make, "run_steps", lambda *_: None)
    monkeypatch.setattr(make, "result_of", lambda *_: FigureResult([]))
    config = read_figure_config(written(tmp_path))
    out = tmp_path / "out"
    out.mkdir()
    make.make_figure(config, out, RunOptions())
    assert json.loads((out / "figure.json").read_text())["verdicts"] == []

    def fails(*_):
        raise FigureError("no")

    monkeypatch.setattr(make, "result_of", fails)
    with pytest.raises(FigureError):
        make.make_figure(config, out, RunOptions())
    assert list(out.iterdir()) == []


def test_two_processes_cannot_draw_into_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "result_of", lambda *_: FigureResult([]))
    config, out = read_figure_config(written(tmp_path)), tmp_path / "out"

    def draws_again(*_):
        with pytest.raises(FigureError, match="another process draws there"):
            make.make_figure(config, out, RunOptions())

    monkeypatch.setattr(make, "run_steps", draws_again)
    make.make_figure(config, out, RunOptions())
    monkeypatch.setattr(make, "run_steps", lambda *_: None)
    make.make_figure(config, out, RunOptions())


@pytest.mark.parametrize(("code", "ends"), [(1, 2), (2, 2), (3, 3), (75, 75), (130, 130)])
def test_a_failed_steps_exit_code_is_returned(tmp_path, monkeypatch, capsys, code, ends):
    program = tmp_path / "kvreplay"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("KVREPLAY", str(program))
    config = written(tmp_path, {"steps": [{"synth": "", "as": "made"}]})
    assert main(["figures", str(config), "-o", str(tmp_path / "out")]) == ends
    assert f"step made ended with exit code {code}" in capsys.readouterr().err


def test_an_interrupted_figure_ends_in_one_line(tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(make, "run_steps", interrupted)
    assert main(["figures", str(written(tmp_path)), "-o", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "kvreplay: interrupted; run again to continue"


def test_a_figure_that_cannot_be_drawn_does_not_stop_the_others_of_a_folder(tmp_path, monkeypatch, capsys):
    for name in "abc":
        written(tmp_path, name=name).rename(tmp_path / f"{name}.yaml")

    def fails_for_a(config, *_):
        if config.name == "a":
            raise FigureError("a: no")

    monkeypatch.setattr(make, "run_steps", fails_for_a)
    monkeypatch.setattr(make, "result_of", lambda *_: FigureResult([]))
    assert main(["figures", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "kvreplay: error: a: no" in said
    assert said[-1] == "kvreplay: error: 1 of 3 figures were not drawn: a"
    assert sorted(path.parent.name for path in tmp_path.glob("out/*/figure.json")) == ["b", "c"]
