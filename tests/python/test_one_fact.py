"""The analysis compares methods by what the engine says of its columns: no list in Python repeats it."""

import json
import subprocess

import numpy as np
import pytest
from kvanalysis.answer.compare import compare_at
from kvanalysis.answer.measures import column_of, default_column, words_of
from kvanalysis.data.load import load
from kvanalysis.data.metrics import known_metrics, metrics_of
from kvanalysis.errors import ConfigError
from kvanalysis.plots.run.compared import compared_words
from kvanalysis.predict.measures import MEASURES
from kvbase.cells import CELL, in_table
from kvbase.engine import _engine
from kvreplay.program import main
from kvreplay_cli import BINARY, ROOT, kvreplay
from test_kvanalysis_fake import COLUMNS, fake_row, write_results

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
SHARE = "share_of_needles"
SAID = {"columns": {SHARE: {"unit": "1", "better": "more", "words": "share of lost needles"}}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two methods at two shares, one of which no method reaches: (folder, its stdout)."""
    out = tmp_path_factory.mktemp("run")
    words = ["-s", "methods=[h2o,{name: snapkv, window: 64}]", "-s", "select.layers=[0,3,7,11,15]"]
    done = kvreplay("run", SAMPLE, *words, "--budget", "0.1%,20%", "-o", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_engine_marks_the_columns_that_identify_a_cell(run):
    said = json.loads((run[0] / "results.meta.json").read_text())["columns"]
    assert {name for name, facts in said.items() if facts.get("identity")} == set(CELL)
    assert set(in_table(CELL)) <= set(load(run[0]))
    assert {each["name"] for each in json.loads(_engine.columns()) if each.get("identity")} == set(CELL)


def test_results_say_of_each_measure_what_the_engine_says(run):
    meta = load(run[0]).attrs["meta"]
    assert metrics_of(meta) == known_metrics()
    assert metrics_of({"runs": [{}, meta]}) == known_metrics()
    assert metrics_of({}) == known_metrics()  # an earlier version wrote nothing about it
    better = {name: each.better for name, each in known_metrics().items()}
    assert {better[name] for name in ("cosine_mean", "kept_mass_mean", "index_recall", "bound_holds")} == {
        "more"
    }
    assert {better[name] for name in ("rel_err_out_mean", "cosine_distance_sq")} == {"less"}


def needles(folder, meta, **shares):
    rows = [fake_row(method, budget=64, layer=layer, total_bytes=1024, full_bytes=4096, **{SHARE: share})
            for method, share in shares.items() for layer in range(6)]  # fmt: skip
    return load(write_results(folder, rows, meta, (*COLUMNS, "given", SHARE)))


def test_a_metric_of_which_more_is_better_needs_nothing_but_the_engines_word(tmp_path):
    frame = needles(tmp_path, SAID, keeps=0.9, loses=0.2)
    answer = compare_at(frame, 0.25, of="peak", measure=SHARE)
    assert answer.best == "keeps"
    assert np.allclose(answer.compared["error"], [0.1, 0.8])
    assert answer.measure_words == "share of lost needles" == words_of(frame, SHARE)


def test_a_column_that_no_engine_knows_is_no_measure(tmp_path):
    frame = needles(tmp_path, None, keeps=0.9, loses=0.2)
    with pytest.raises(ConfigError, match=f"--measure {SHARE}: these results have no such measure"):
        column_of(frame, SHARE)


def test_pictures_and_answers_choose_one_measure_where_values_are_missing(tmp_path):
    """A table joined with one of an older version: a measure that some methods lack would leave them out."""
    column = "cosine_distance_sq"
    rows = [fake_row("new", **{column: 0.1}), fake_row("old", **{column: ""})]
    joined = load(write_results(tmp_path, rows, columns=(*COLUMNS, "given", column)))
    assert column_of(joined, None) == default_column(joined) == "rel_err_out_mean"
    assert compared_words(joined) == "mean relative error"
    whole = joined[joined["method"] == "new"]
    assert column_of(whole, None) == default_column(whole) == column
    assert column_of(joined, column) == column


def test_measures_that_predict_the_loss_have_the_engines_words():
    words = {measure.name: measure.words for measure in MEASURES}
    assert words["missing_mass"] == known_metrics()["kept_mass_mean"].words
    assert words["drift_mean"] == "drift of the residual stream"
    turned = {measure.name: measure.of(np.array([0.75])) for measure in MEASURES}
    assert turned["missing_mass"] == 0.25 and turned["rmse"] == turned["drift_mean"] == 0.75


def test_the_table_of_a_run_can_be_printed_again(run):
    out, printed = run
    assert "needs" in printed and "share" in printed and "% of prompt" in printed
    alone = subprocess.run([BINARY, "table", out], capture_output=True, text=True, check=False)
    for again in (kvreplay("table", out), kvreplay("table", out, "-q"), alone):
        assert (again.returncode, again.stdout, again.stderr) == (0, printed, "")


def test_help_lists_every_verb_once(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.partition("examples:")[0].splitlines()
    verbs = [line.split()[0] for line in lines if line.startswith("  ") and line[2].isalpha()]
    assert "table" in verbs and len(verbs) == len(set(verbs))


def test_the_table_with_intervals_leads_with_the_same_measure(run):
    header, *rows = kvreplay("table", run[0], "--intervals").stdout.splitlines()
    assert header.split()[:3] == ["method", "budget", "distance"] and "% of prompt" in header
    assert rows


def test_a_table_of_an_older_version_is_printed_without_what_it_lacks(tmp_path):
    write_results(tmp_path, [fake_row("h2o", budget=64)], columns=COLUMNS)
    done = kvreplay("table", tmp_path)
    header, row = done.stdout.splitlines()
    assert header.split()[:3] == ["method", "budget", "cosine_distance_sq"]
    assert row.split()[:3] == ["h2o", "64", "-"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "not a kvreplay results file: it has no column method"),
        ("key\n", "has no cell yet"),
        ("CUT", ":2: has 5 fields, and the header"),
    ],
)
def test_a_damaged_table_is_refused_with_its_file(tmp_path, text, says):
    if text == "CUT":
        file = write_results(tmp_path, [fake_row()]) / "results.csv"
        head, row = file.read_text().splitlines()
        text = f"{head}\n{','.join(row.split(',')[:5])}\n"
    (tmp_path / "results.csv").write_text(text)
    done = kvreplay("table", tmp_path)
    assert done.returncode == 3
    assert f"{tmp_path}/results.csv" in done.stderr and says in done.stderr
