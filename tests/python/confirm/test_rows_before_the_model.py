"""Rows that cannot be coded are reported before the model is loaded."""

import csv
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from confirm_fixture import confirm, copy_of, replay, rows
from kvconfirm import confirm as confirmation
from program_beside_python import run_python

pytestmark = pytest.mark.torch

INT4 = {"name": "int4", "group": 4, "skip_layers": [0]}


@pytest.fixture(scope="module")
def coded(tiny, tmp_path_factory):
    methods = [{"name": "tova"}, {"name": "h2o", "row_format": INT4}]
    return replay(tiny[2], tmp_path_factory.mktemp("coded") / "out", methods, select={"prompts": ["b"]})


@pytest.fixture
def out(coded, tmp_path):
    return copy_of(coded, tmp_path / "out")


@pytest.fixture
def loaded(monkeypatch):
    """A list with one entry for each later loading of the weights."""
    seen = []
    real = confirmation.load_model
    monkeypatch.setattr(confirmation, "load_model", lambda *words: seen.append(words) or real(*words))
    return seen


def as_nvfp4(out):
    """Changes the row format to nvfp4, whose blocks have 16 numbers; a head has 8."""
    table = out / "results.csv"
    with table.open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    for cell in cells:
        parameters = json.loads(cell["params"])
        if parameters.get("row_format", "source") != "source":
            parameters["row_format"] = {"name": "nvfp4", "skip_layers": [0]}
        cell["params"] = json.dumps(parameters)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, cells[0])
        writer.writeheader()
        writer.writerows(cells)


def test_an_impossible_format_is_reported_before_the_model_is_loaded(tiny, out, loaded, capsys):
    as_nvfp4(out)
    assert confirm(out, tiny[1], "--trace", tiny[2], "--methods", "h2o") == 3
    said = capsys.readouterr().err
    assert "h2o" in said and "layer 1" in said and "nvfp4" in said
    assert loaded == [] and not (out / "confirm.csv").exists()


def test_impossible_formats_among_others_are_named_before_the_model_is_loaded(tiny, out, loaded, capsys):
    as_nvfp4(out)
    assert confirm(out, tiny[1], "--trace", tiny[2], "--draws", 1) == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("1 of 2 instances will fail: h2o") and "layer 1" in first
    assert len(loaded) == 1
    assert {row["method"]: row["status"] for row in rows(out)} == {"tova": "ok", "h2o": "failed"}


def test_a_missing_engine_is_reported_before_the_model_is_loaded(tiny, out):
    code = (
        "import sys; sys.modules['kvbase._engine'] = None; from kvreplay.program import main; "
        "sys.exit(main(['confirm', *sys.argv[1:]]))"
    )
    done = run_python(code, out, "--model", tiny[1], "--trace", tiny[2], check=False)
    assert done.returncode == 2
    assert "the engine as a Python module is missing" in done.stderr
    assert "-DKVREPLAY_PYTHON=ON" in done.stderr
