"""The page, the terminal table and the command line."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import kvanalysis
import pytest
from kvanalysis import load, report
from kvanalysis.cli import main
from kvanalysis.format import significant, table_cells
from kvanalysis.summary import summarise
from test_kvanalysis_fake import FAKE_META, TRACE, failed_row, fake_row, fake_rows, write_results

PAGE_LIMIT_BYTES = 5_000_000
VOID = {"meta", "img", "source", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and collects texts, attributes and table rows."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows, self.text = [], [], [], text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]
        self.rows += [[]] if tag == "tr" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and {"td", "th"} & set(self.open[-2:]):
            self.rows[-1].append(data)

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.tags if name in attrs]


def page(folder, rows, meta=None):
    write_results(folder, rows, meta)
    assert main(["report", str(folder)]) == 0
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The page of a run with many methods and one kind of failure."""
    rows = fake_rows()
    rows[-1] = failed_row(
        "empty <denominator>", **{k: rows[-1][k] for k in ("method", "layer", "kv_head")}, budget=512
    )
    return page(tmp_path_factory.mktemp("whole"), rows, FAKE_META)


def test_the_page_is_html_whose_tags_nest(whole_run):
    assert whole_run.text.startswith("<!DOCTYPE html>")
    assert ("h1", {}) in whole_run.tags


def test_the_page_loads_nothing_from_anywhere(whole_run):
    sources = [source for name in ("src", "srcset", "href") for source in whole_run.attributes(name)]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|@import|url\(", whole_run.text)


def test_the_page_stays_below_five_megabytes(whole_run):
    assert len(whole_run.text.encode()) < PAGE_LIMIT_BYTES


def test_the_page_fits_a_phone_and_serves_it_the_narrow_figures(whole_run):
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in whole_run.tags
    # The matrix of wins has no narrow form.
    assert len(whole_run.attributes("srcset")) == len(whole_run.attributes("src")) - 1 >= 5


def test_figures_that_do_not_fit_are_named_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "EMBED_BYTES", 10)
    found = page(tmp_path, [fake_row()])
    assert found.attributes("src") == []
    assert "error_vs_budget_page.png, left out" in found.text


def test_the_page_tells_where_the_numbers_come_from(whole_run):
    for fact in ("SmolLM2-135M-Instruct", TRACE, "2026-01-02T03:04:05Z", "0123abc", "avx2", "hdf5 1.10.8"):
        assert fact in whole_run.text
    assert "kvreplay report · smol-budget-sweep" in whole_run.text
    assert "2000 bootstrap resamples, seed 0" in whole_run.text


def test_a_run_without_meta_says_that_its_origin_is_not_recorded(tmp_path):
    assert "results.meta.json is absent" in page(tmp_path, [fake_row()]).text


def test_the_page_says_that_replay_is_teacher_forced(whole_run):
    assert "Replay is teacher-forced" in whole_run.text


def test_every_number_of_the_summary_stands_in_the_table(tmp_path):
    rows = [
        fake_row(kv_head=h, rel_err=e, total_bytes=2048, full_bytes=8192) for h, e in enumerate((0.1, 0.3))
    ]
    values = {"eps_spectral_mean": 0.05, "partition_err_mean": 0.125, "kept_mass_mean": 0.875}
    found = page(tmp_path, [row | values for row in rows]).rows[1]
    wanted = [
        "h2o",
        "64",
        "0.200",
        "0.100 … 0.300",
        "0.0500",
        "0.125",
        "0.875",
        "64",
        "2.0",
        "25.0",
        "2",
        "2/2",
    ]
    assert found == wanted


def test_cells_sort_by_their_number_and_absent_ones_carry_no_key(tmp_path):
    _, [row] = table_cells(
        summarise(load(write_results(tmp_path, [fake_row("exact", budget="", rel_err=0.25)])))
    )
    assert row[1] == ("–", None)
    assert row[2] == ("0.250", 0.25)


def test_failures_are_listed_with_their_message_count_and_place(whole_run):
    assert "empty &lt;denominator&gt;" in whole_run.text
    assert whole_run.rows[-1] == [
        "topk_oracle",
        "failed",
        "empty <denominator>",
        "1",
        "p0, layer 29, kv head 2, budget 512",
    ]


def test_a_run_without_failures_has_no_table_of_them(tmp_path):
    assert "Cells without a result" not in page(tmp_path, [fake_row()]).text


def test_text_from_the_results_cannot_become_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    found = page(
        tmp_path, [fake_row(evil, model=evil, prompt=evil)], {"git_commit": evil, "config": {"name": evil}}
    )
    assert [tag for tag, _ in found.tags].count("script") == 1


def test_traces_are_told_apart_in_the_table(tmp_path):
    rows = page(tmp_path, [fake_row(trace_id=letter * 64) for letter in "ab"]).rows
    assert [row[0] for row in rows[:3]] == ["trace", "aaaaaaaa", "bbbbbbbb"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.15, "0.150"), (1.632, "1.63"), (12.34, "12.3"), (1234.5, "1234"), (0, "0"), (1.23e-5, "1.2e-05")],
)
def test_numbers_have_three_significant_digits(value, text):
    assert significant(value) == text


def test_the_table_command_prints_aligned_columns(tmp_path, capsys):
    write_results(tmp_path, [fake_row("h2o", budget=64), fake_row("streaming_llm", budget=1024)])
    assert main(["table", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["method", "h2o", "streaming_llm"]
    assert (
        len(
            {line.index(text) + len(text) for line, text in zip(lines, ("budget", "64", "1024"), strict=True)}
        )
        == 1
    )


def test_the_figures_command_writes_them_beside_the_results(tmp_path, capsys):
    assert main(["figures", str(write_results(tmp_path, [fake_row()]))]) == 0
    printed = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.parent for path in printed} == {tmp_path / "figures"}
    assert all(path.exists() for path in printed)


def test_the_report_goes_where_it_is_sent(tmp_path, capsys):
    target = tmp_path / "elsewhere" / "page.html"
    assert main(["report", str(write_results(tmp_path / "out", [fake_row()])), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.exists()
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("command", ["report", "figures", "table"])
def test_missing_results_exit_with_3_and_one_line(tmp_path, capsys, command):
    assert main([command, str(tmp_path)]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"kvanalysis: error: {tmp_path}/results.csv: no such file; `kvreplay run` writes it\n"


@pytest.mark.parametrize("arguments", [[], ["paint", "out"], ["table"], ["table", "out", "--colour"]])
def test_bad_usage_exits_with_2_and_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_page_that_cannot_be_written_exits_with_2_and_one_line(tmp_path, capsys):
    write_results(tmp_path, [fake_row()])
    assert main(["report", str(tmp_path), "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("kvanalysis: error: cannot write:")


def test_the_package_runs_as_a_module(tmp_path):
    write_results(tmp_path, [fake_row()], FAKE_META)
    search = {"PYTHONPATH": str(Path(kvanalysis.__file__).parents[1])}
    command = [sys.executable, "-m", "kvanalysis", "table", str(tmp_path)]
    done = subprocess.run(command, env=os.environ | search, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "h2o" in done.stdout


def test_the_configuration_is_shown_whole(whole_run):
    text = json.dumps(FAKE_META["config"], indent=2).replace('"', "&quot;")
    assert text in whole_run.text
