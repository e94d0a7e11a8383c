"""The page, the terminal table and the command line."""

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import page_in_browser
import pytest
from kvanalysis import load
from kvanalysis.drawing.progress import DrawingProgress
from kvanalysis.drawing.saving import few_colours, save
from kvanalysis.drawing.style import COLOURS, styled
from kvanalysis.page import interactive_script, pictures
from kvanalysis.page.figure_folder import read_folder
from kvanalysis.page.untestable import untestable_claims
from kvanalysis.plots import pictures_of
from kvanalysis.plots.run import error_vs_budget, error_vs_bytes
from kvanalysis.stats.format import significant, table_cells
from kvanalysis.stats.intervals import mean_interval, size_interval
from kvanalysis.stats.summary import summarise
from kvreplay.program import main
from kvreplay_cli import ROOMS
from page_parts import only_plots
from PIL import Image, ImageColor
from test_kvanalysis_fake import COLUMNS, FAKE_META, TRACE, failed_row, fake_row, fake_rows, write_results

PAGE_LIMIT_BYTES = 3_000_000
VOID = {"meta", "img", "source", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Parses a page: checks that tags nest, and collects texts, attributes and table rows."""

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


@pytest.fixture
def no_pictures(monkeypatch):
    only_plots(monkeypatch)


@pytest.fixture
def one_picture(monkeypatch):
    only_plots(monkeypatch, error_vs_bytes)


def page(folder, rows, meta=None, columns=(*COLUMNS, "given")):
    write_results(folder, rows, meta, columns)
    assert main(["report", str(folder)]) == 0
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The page of a run with many methods and one kind of failure."""
    rows = fake_rows()
    rows[-1] = failed_row(
        "empty <denominator>", **{k: rows[-1][k] for k in ("method", "layer", "kv_head")}, budget=512
    )
    note = {"kind": "single_head", "instances": [], "budgets": [], "traces": [], "cells": 1, "heads": 1}
    meta = FAKE_META | {"notes": [note | {"text": "what the engine notes"}]}
    return page(tmp_path_factory.mktemp("whole"), rows, meta)


def test_the_page_is_html_whose_tags_nest(whole_run):
    assert whole_run.text.startswith("<!DOCTYPE html>")
    assert ("h1", {}) in whole_run.tags


def test_the_page_loads_nothing_from_anywhere(whole_run):
    sources = [source for name in ("src", "srcset") for source in whole_run.attributes(name)]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|@import|url\(", whole_run.text)


def test_the_page_stays_below_three_megabytes(whole_run):
    assert len(whole_run.text.encode()) < PAGE_LIMIT_BYTES


def test_the_page_fits_a_phone_and_serves_it_the_narrow_figures(whole_run):
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in whole_run.tags
    # The matrix of wins has no narrow version.
    assert len(whole_run.attributes("srcset")) == len(whole_run.attributes("src")) - 1 >= 4


def test_every_link_leads_to_a_place_on_the_page_or_a_file_beside_it(tmp_path):
    rows = [fake_row(budget=b) for b in (64, 128)]
    assert main(["figures", str(write_results(tmp_path, rows))]) == 0
    found = page(tmp_path, rows)
    places = {f"#{name}" for name in found.attributes("id")}
    links = found.attributes("href")
    assert {link for link in links if link.startswith("#")} <= places
    files = [link for link in links if not link.startswith("#")]
    assert {"figures/error_vs_bytes_page.png", "figures/error_vs_bytes_page.pdf"} <= set(files)
    assert all((tmp_path / file).is_file() for file in files)


def test_figures_that_do_not_fit_are_named_instead(tmp_path, monkeypatch, one_picture):
    monkeypatch.setattr(pictures, "EMBED_BYTES", 10)
    found = page(tmp_path, [fake_row()])
    assert found.attributes("src") == []
    assert "error_vs_bytes_page.png: left out" in found.text
    assert re.search(r"\d+ pictures? left out to keep this page small", found.text)


def test_the_page_states_the_source_of_its_numbers(whole_run):
    for fact in ("SmolLM2-135M-Instruct", TRACE, "2026-01-02T03:04:05Z", "0123abc", "avx2", "hdf5 1.10.8"):
        assert fact in whole_run.text
    assert "kvreplay report · smol-budget-sweep" in whole_run.text
    assert "95% Student intervals over the layers of each text, at least 5" in whole_run.text


def test_the_page_shows_the_notes_of_the_run_once(whole_run):
    assert whole_run.text.count("What these numbers c") == 1
    assert whole_run.text.count("what the engine notes") == 1


def test_the_name_of_a_text_does_not_read_as_a_count(tmp_path, no_pictures):
    one = page(tmp_path / "one", [fake_row(prompt="0")]).text
    assert "name of the text" in one and "texts (prompts)" not in one
    assert "names of the texts" in page(tmp_path / "two", [fake_row(prompt="0"), fake_row(prompt="1")]).text


def test_the_picture_stays_until_the_figure_is_drawn():
    loaded = interactive_script.GLUE.partition("Promise.all")
    assert "still.hidden = true" not in loaded[0]
    assert 0 < loaded[2].index("draw()") < loaded[2].index("still.hidden = true")


def test_no_interval_of_an_error_is_negative():
    errors = [0.001, 0.001, 0.001, 0.001, 0.5]
    mean, low, high = mean_interval(errors)
    assert low < 0 and size_interval(errors) == (mean, 0, high)
    assert size_interval([*errors, -0.1]) == mean_interval([*errors, -0.1])  # a difference
    assert np.isnan(size_interval([0.1])[1])


def test_the_page_shows_no_negative_interval_of_an_error(tmp_path, no_pictures):
    rows = [fake_row(layer=i, rel_err=e) for i, e in enumerate([0.001, 0.001, 0.001, 0.001, 0.5])]
    assert re.search(r"\b0 … 0\.\d+", page(tmp_path, rows).text)


def test_a_run_without_meta_says_that_its_origin_is_not_recorded(tmp_path, no_pictures):
    assert "results.meta.json is absent" in page(tmp_path, [fake_row()]).text


def test_the_page_says_that_replay_is_teacher_forced(whole_run):
    assert "Replay is teacher-forced" in whole_run.text


def test_every_number_of_the_summary_is_in_the_table(tmp_path, no_pictures):
    rows = [fake_row(layer=i, rel_err=0.1 + 0.05 * i, total_bytes=2048, full_bytes=8192) for i in range(5)]
    values = {"eps_spectral_mean": 0.05, "partition_err_mean": 0.125, "kept_mass_mean": 0.875}
    values |= {"cosine_distance_sq": 0.03, "prompt_bytes": 1024, "prompt_full_bytes": 5120}
    columns = (*COLUMNS, "given", *list(values)[3:])
    whole = page(tmp_path, [row | values for row in rows], columns=columns)
    found = next(row for row in whole.rows if "5/5" in row)
    wanted = [
        "h2o",
        "64",
        "0.0300",
        "0.0300 … 0.0300",
        "0.200",
        "0.102 … 0.298",  # mean plus or minus 2.776 sqrt(0.00625 / 5)
        "0.0500",
        "0.125",
        "0.875",
        "64",
        "2.0",
        "20.0",
        "25.0",
        "5",
        "5/5",
    ]
    assert found == wanted


def test_cells_sort_by_their_number_and_absent_ones_carry_no_key(tmp_path):
    _, [row] = table_cells(
        summarise(load(write_results(tmp_path, [fake_row("exact", budget="", rel_err=0.25)])))
    )
    assert row[1] == ("–", None)
    assert row[4] == ("0.250", 0.25)


def test_failures_are_listed_with_their_message_count_and_place(whole_run):
    assert "empty &lt;denominator&gt;" in whole_run.text
    place = "p0, layer 29, kv head 2, budget 512"
    assert ["topk_oracle", "failed", "empty <denominator>", "1", place] in whole_run.rows


def test_a_run_without_failures_has_no_table_of_them(tmp_path, no_pictures):
    assert "Cells without a result" not in page(tmp_path, [fake_row()]).text


def test_text_from_the_results_cannot_become_markup(tmp_path, one_picture):
    evil = "<script>alert(1)</script>"
    found = page(
        tmp_path, [fake_row(evil, model=evil, prompt=evil)], {"git_commit": evil, "config": {"name": evil}}
    )
    plain = page(tmp_path / "plain", [fake_row()])
    assert [tag for tag, _ in found.tags].count("script") == [tag for tag, _ in plain.tags].count("script")


def test_traces_have_separate_rows_in_the_table(tmp_path, no_pictures):
    rows = page(tmp_path, [fake_row(trace_id=letter * 64) for letter in "ab"]).rows
    head = next(place for place, row in enumerate(rows) if row[0] == "trace")
    assert [row[0] for row in rows[head : head + 3]] == ["trace", "aaaaaaaa", "bbbbbbbb"]


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


def test_the_figures_command_writes_next_to_the_results(tmp_path, capsys, one_picture):
    assert main(["figures", str(write_results(tmp_path, [fake_row()]))]) == 0
    printed = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.parent for path in printed} == {tmp_path / "figures"}
    assert all(path.exists() for path in printed)


@pytest.mark.parametrize("command", ["report", "figures"])
def test_a_terminal_shows_the_figure_being_drawn(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main([command, str(write_results(tmp_path, [fake_row()]))]) == 0
    *lines, last = capsys.readouterr().err.split("\r\033[K")[1:]
    told = [re.fullmatch(r"drawing figure (\d+) of (\d+): \w+", line) for line in lines]
    assert [int(match[1]) for match in told] == list(range(1, int(told[0][2]) + 1))
    assert last == ""  # the line is erased


def test_off_a_terminal_progress_is_printed_once_per_second():
    now = [0.0]
    stream = io.StringIO()
    told = DrawingProgress(stream, clock=lambda: now[0])
    for number, second in enumerate((0.5, 0.9, 1.5, 1.9, 2.6), 1):
        now[0] = second
        told(number, 5, "error_table")
    told.close()
    assert stream.getvalue() == "drawing figure 3 of 5: error_table\ndrawing figure 5 of 5: error_table\n"


def test_the_report_goes_where_it_is_sent(tmp_path, capsys, no_pictures):
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
    assert shown.err.startswith(f"kvreplay: error: {tmp_path}")
    assert "results.csv" in shown.err and shown.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["table"], ["table", "out", "--colour"]])
def test_bad_usage_exits_with_2_and_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_page_that_cannot_be_written_exits_with_2_and_one_line(tmp_path, capsys, no_pictures):
    write_results(tmp_path, [fake_row()])
    assert main(["report", str(tmp_path), "-o", str(tmp_path)]) == 2
    (said,) = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("drawing figure ")]
    assert said.startswith("kvreplay: error: cannot write:")


def test_the_package_runs_as_a_module(tmp_path):
    write_results(tmp_path, [fake_row()], FAKE_META)
    search = {"PYTHONPATH": os.pathsep.join(ROOMS)}
    command = [sys.executable, "-m", "kvreplay", "table", str(tmp_path)]
    done = subprocess.run(command, env=os.environ | search, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "h2o" in done.stdout


def test_the_configuration_is_shown_whole(whole_run):
    text = json.dumps(FAKE_META["config"], indent=2).replace('"', "&quot;")
    assert text in whole_run.text


def test_a_page_states_the_limits_right_below_the_answer_and_its_figure(whole_run):
    said = [
        whole_run.text.index(text) for text in ("teacher-forced", "Task accuracy", "differences below 10 %")
    ]
    assert max(said) < whole_run.text.index("<h2>Figures</h2>")


def test_a_picture_keeps_the_colours_of_its_curves():
    """Reducing colours must neither change a curve nor merge two of them."""
    drawn = Image.new("RGB", (400, 200), "white")
    drawn.paste("#fcfcfc", (300, 5, 400, 15))
    for line, colour in enumerate(COLOURS):
        drawn.paste(colour, (0, 20 * line, 400, 20 * line + 2))
    noise = np.random.default_rng(1).integers(0, 256, (20, 400, 3), dtype=np.uint8)
    drawn.paste(Image.fromarray(noise), (0, 180))
    shown = few_colours(drawn).convert("RGB")
    found = [shown.getpixel((200, 20 * line)) for line in range(len(COLOURS))]
    assert found == [ImageColor.getrgb(colour) for colour in COLOURS]
    assert shown.getpixel((200, 10)) == (255, 255, 255)


def test_a_picture_longer_than_its_format_allows_is_made_smaller(tmp_path):
    Image.new("RGB", (60, 20000), "white").save(tmp_path / "a.png")
    with Image.open(io.BytesIO(pictures.webp(tmp_path / "a.png"))) as coded:
        assert coded.height == 16383


def figure_folder(folder, name="h2o_fig2", paper="H2O", verdicts=(), rows=(), pictures=1):
    """The folder that `kvreplay figures configs/figures/NAME.yaml -o FOLDER` makes, without the engine."""
    place = folder / name
    place.mkdir(parents=True)
    figures = []
    for number in range(pictures):
        for width in ("page", "column"):
            Image.new("RGB", (60, 40), "white").save(place / f"{number}_{width}.png")
            (place / f"{number}_{width}.pdf").write_bytes(b"%PDF-1.4")
        (place / f"{number}.csv").write_text("x,y\n1,2\n")
        files = {"png": f"{number}_page.png", "narrow": f"{number}_column.png", "csv": f"{number}.csv"}
        figures.append(files | {"title": f"Picture {number}", "caption": "15 heads; mean of ratios."})
    if rows:
        write_results(place / "run", rows)
    said = {"name": name, "kind": "error_vs_budget", "paper": paper, "number": "Fig. 2", "mark": "P"}
    said |= {"title": f"About {name}", "expect": "both lose less", "mark_means": "proxy: task scores"}
    said |= {"config": f"{name}.yaml", "figures": figures, "verdicts": list(verdicts)}
    (place / "figure.json").write_text(json.dumps(said))
    return place


def verdict(outcome="holds", claim="sinks help"):
    return {"claim": claim, "source": "Table 1", "how": "paired", "outcome": outcome, "numbers": "0.1 < 0.2"}


def figures_page(folder):
    assert main(["report", str(folder)]) == 0
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    rows = [fake_row(kv_head=head, layer=layer) for head in range(3) for layer in (0, 7)]
    figure_folder(folder, "h2o_fig2", "H2O", [verdict(), verdict("mixed", "greedy <is> good")], rows)
    figure_folder(folder, "subgen_fig1", "SubGen", [verdict("does not hold", "keys cluster")], pictures=2)
    (folder / "buzz_fig4").mkdir()
    return folder, figures_page(folder)


def test_a_folder_of_figures_becomes_one_page_with_every_picture(whole_folder):
    _, found = whole_folder
    assert len(found.attributes("src")) == len(found.attributes("srcset")) == 3
    for text in ("About h2o_fig2", "Proxy: task scores", "both lose less", "15 heads; mean of ratios."):
        assert text in found.text
    assert "kvreplay figures configs/figures/h2o_fig2.yaml" in found.text


def test_the_links_of_the_page_of_figures_work(whole_folder):
    folder, found = whole_folder
    links = found.attributes("href")
    assert {link for link in links if link.startswith("#")} <= {f"#{i}" for i in found.attributes("id")}
    files = {link for link in links if not link.startswith("#")}
    assert {"h2o_fig2/0_page.png", "h2o_fig2/0_page.pdf", "h2o_fig2/0.csv"} <= files
    assert all((folder / file).is_file() for file in files)


def test_links_lead_to_the_files_when_the_page_goes_elsewhere(tmp_path):
    figure_folder(tmp_path / "figures")
    assert main(["report", str(tmp_path / "figures"), "-o", str(tmp_path / "pages/page.html")]) == 0
    assert 'href="../figures/h2o_fig2/0.csv"' in (tmp_path / "pages/page.html").read_text()


def test_claims_are_grouped_by_paper_with_counts_and_runs(whole_folder):
    _, found = whole_folder
    offline = Counter(claim.paper for claim in untestable_claims())
    assert ["SubGen", "0", "1", "0", "0", str(offline["SubGen"]), str(1 + offline["SubGen"])] in found.rows
    assert ["H2O", "1", "0", "1", "0", str(offline["H2O"]), str(2 + offline["H2O"])] in found.rows
    ran = offline["SubGen"] + offline["H2O"]
    assert ["all", "1", "1", "1", "0", str(ran), str(3 + ran)] in found.rows
    assert "BUZZ" not in {row[0] for row in found.rows}
    assert f"<summary>Claims that no replay can test ({ran})</summary>" in found.text
    heads = "6 kv heads of 2 layers, 1 text, SmolLM2-135M-Instruct"
    assert ["sinks help", "✓ holds", "0.1 < 0.2", "paired", heads, "Table 1 figure"] in [
        ["".join(row[:1]), *row[1:5], "".join(row[5:])] for row in found.rows if len(row) > 5
    ]


def test_a_configuration_that_drew_nothing_is_named(whole_folder):
    assert "Not drawn, see the messages of `kvreplay figures`: buzz_fig4." in whole_folder[1].text


def test_a_quick_figure_is_marked_and_its_command_is_complete(tmp_path):
    place = figure_folder(tmp_path)
    said = json.loads((place / "figure.json").read_text())
    made = {"traces": ["mine.h5"], "overrides": ["replay.tokens=512"], "quick": True}
    (place / "figure.json").write_text(json.dumps(said | made))
    text = figures_page(tmp_path).text
    assert "Drawn from one kv head per layer, as a quick look and not as a result: h2o_fig2." in text
    assert "configs/figures/h2o_fig2.yaml --quick -s replay.tokens=512" in text
    assert "Data: trace mine.h5, without a replay." in text


def test_a_page_of_figures_states_the_limits_and_loads_nothing(whole_folder):
    text = whole_folder[1].text
    assert text.index("teacher-forced") < text.index("<h2>Claims</h2>")
    assert not re.search(r"https?://|@import|url\(", text)


def test_text_of_a_figure_cannot_become_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    figure_folder(tmp_path, paper=evil, verdicts=[verdict(claim=evil)])
    assert [tag for tag, _ in figures_page(tmp_path).tags].count("script") == 1


@pytest.mark.parametrize(
    "broken",
    ["{", "[]", '{"name": "x"}', '{"figures": 3}'],
)
def test_a_foreign_figure_json_exits_with_3_and_one_line(tmp_path, capsys, broken):
    (figure_folder(tmp_path) / "figure.json").write_text(broken)
    assert main(["report", str(tmp_path)]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"overrides": [1]},
        {"overrides": 5},
        {"traces": 5},
        {"mark_means": ""},
        {"figures": [{"title": None, "png": "0_page.png", "csv": "0.csv"}]},
        {"figures": [{"title": "t", "png": "0_page.png", "csv": "0.csv", "caption": 5}]},
        {"verdicts": [{"claim": None, "source": "s", "how": "h", "outcome": "holds"}]},
        {"verdicts": [{"claim": "c", "source": "s", "how": "h", "outcome": "holds", "numbers": [1]}]},
    ],
)
def test_an_odd_entry_of_figure_json_exits_with_3_and_one_line(tmp_path, capsys, change):
    path = figure_folder(tmp_path) / "figure.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["report", str(tmp_path)]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_picture_that_is_torn_or_gone_exits_with_3_and_its_name(tmp_path, capsys):
    place = figure_folder(tmp_path)
    for spoil in (lambda path: path.write_bytes(path.read_bytes()[:40]), lambda path: path.unlink()):
        spoil(place / "0_page.png")
        assert main(["report", str(tmp_path)]) == 3
        assert "0_page.png: cannot be read as a picture; draw the figure again" in capsys.readouterr().err


def test_an_invalid_outcome_is_refused(tmp_path, capsys):
    figure_folder(tmp_path, verdicts=[verdict("surely")])
    assert main(["report", str(tmp_path)]) == 3
    assert "'surely' is not one of holds" in capsys.readouterr().err


def test_a_picture_in_both_widths_takes_a_twentieth_of_the_limit(tmp_path, monkeypatch):
    """With that, a page of twenty pictures leaves none out and stays below its limit."""
    room = pictures.EMBED_BYTES // 20
    monkeypatch.setattr(pictures, "EMBED_BYTES", 2 * room)
    found = pictures_of(load(write_results(tmp_path / "out", fake_rows())), [error_vs_budget])
    with styled():
        drawn = [save(picture, tmp_path, pdf=False) for picture in found]
    album = pictures.Album(drawn, tmp_path)
    assert album.left_out == []
    assert sum(len(album.show(figure)) for figure in drawn) * 10 < PAGE_LIMIT_BYTES


def test_phones_lose_their_own_picture_before_any_is_left_out(tmp_path, monkeypatch):
    figure_folder(tmp_path, pictures=2)
    [made] = read_folder(tmp_path)[0]
    wide = len(pictures.webp(made.figures[0].png))
    monkeypatch.setattr(pictures, "EMBED_BYTES", 3 * wide)
    album = pictures.Album(made.figures, tmp_path)
    shown = "".join(album.show(figure) for figure in made.figures)
    assert (album.left_out, shown.count("src="), shown.count("srcset=")) == ([], 2, 0)


@pytest.mark.skipif(page_in_browser.CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_both_pages_without_scrolling_sideways(tmp_path, whole_run, whole_folder, width):
    for name, found in (("run", whole_run), ("figures", whole_folder[1])):
        path = tmp_path / f"{name}.html"
        path.write_text(found.text, encoding="utf-8")
        seen = page_in_browser.look(path, width, tmp_path)
        assert (seen.console, seen.requests) == ([], []), name
        assert seen.scroll <= seen.client, name
        assert seen.sortable > 0, name
        assert seen.sorted, name


@pytest.mark.skipif(page_in_browser.CHROMIUM is None, reason="no Chromium here")
def test_a_logarithmic_axis_has_ticks_in_each_decade(tmp_path):
    """Less than two decades included, where Bokeh's own ticks are linear."""
    function = re.search(r"^const tenths.*?^}", interactive_script.GLUE, re.M | re.S)[0]
    page = tmp_path / "ticks.html"
    ranges = "[[0.0024, 0.18], [1e-6, 2], [3, 3.5]]"
    script = f"{function} document.title = JSON.stringify({ranges}.map(range => ticksIn(...range)))"
    page.write_text(f"<script>{script}</script>")
    found = page_in_browser.browse(page, "--dump-dom", folder=tmp_path).stdout
    ticks = json.loads(re.search("<title>(.*?)</title>", found)[1])
    assert ticks == [
        [0.005, 0.01, 0.02, 0.05, 0.1],
        [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1],
        [3, 3.1, 3.2, 3.3, 3.4, 3.5],
    ]
