"""Figures: their files, and their content in unusual situations."""

import numpy as np
import pandas as pd
import pytest
from caught_figures import pictures
from kvanalysis import load
from kvanalysis.drawing.budget_axes import draw, drawable, legend_text, set_budget_axis, set_error_axis
from kvanalysis.drawing.saving import save
from kvanalysis.drawing.style import DASHED, finish, new_figure, styled, styles_for
from kvanalysis.figures.make import write_figures
from kvanalysis.plots.run import error_vs_budget, error_vs_bytes
from kvanalysis.plots.run.error_vs_budget import footnote
from kvanalysis.stats.summary import summarise
from matplotlib.colors import to_hex
from page_parts import only_plots
from test_kvanalysis_fake import failed_row, fake_row, fake_rows, write_results

PIXELS = {"column": 660, "page": 1380}  # 3.3 and 6.9 inches at 200 dpi


def points(folder, rows):
    return summarise(load(write_results(folder, rows)))


def panel(table):
    """The axes with every curve of `table`."""
    axes = new_figure(3.3).subplots()
    draw(axes, table, styles_for(sorted(set(table["label"])), set()))
    return axes


def budget_figures(frame, folder, pdf=False):
    """Draws only error against budget: other figures would slow down tests that do not check them."""
    folder.mkdir(exist_ok=True)
    with styled():
        return [save(picture, folder, pdf=pdf) for picture in pictures(error_vs_budget, frame)]


def png_width(path):
    return int.from_bytes(path.read_bytes()[16:20], "big")


def test_every_figure_comes_as_png_pdf_and_csv(tmp_path):
    methods = ("h2o", "snapkv", "tova", "topk_oracle")
    rows = [row for row in fake_rows() if row["layer"] in (0, 7) and row["method"] in methods]
    rows = [row for row in rows if row["budget_tokens"] in (64, 256)]
    figures = write_figures(load(write_results(tmp_path, rows)), tmp_path / "figures")
    assert [figure.csv.stem for figure in figures] == [
        "error_vs_bytes", "rank_table", "wins_stream",
        "best_method_map", "layer_head_map",
    ]  # fmt: skip
    pictures = [path for figure in figures for path in (figure.png, figure.narrow) if path]
    assert all(path.is_file() and path.with_suffix(".pdf").is_file() for path in pictures)
    assert all(figure.csv.is_file() for figure in figures)


def test_the_figures_are_exactly_as_wide_as_a_column_and_a_page(tmp_path):
    budget_figures(load(write_results(tmp_path, [fake_row()])), tmp_path)
    assert {name: png_width(tmp_path / f"error_vs_budget_{name}.png") for name in PIXELS} == PIXELS


def test_equal_results_give_equal_files(tmp_path):
    frame = load(write_results(tmp_path, [fake_row(budget=b) for b in (64, 128)]))
    for folder in ("a", "b"):
        budget_figures(frame, tmp_path / folder, pdf=True)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_the_csv_holds_the_drawn_numbers(tmp_path):
    rows = [fake_row(layer=i, rel_err=0.1 + 0.05 * i) for i in range(5)]
    figure, *_ = budget_figures(load(write_results(tmp_path, rows)), tmp_path)
    table = pd.read_csv(figure.csv)
    assert table[["label", "budget_tokens", "n_units"]].values.tolist() == [["h2o", 64, 5]]
    shown = table[["rel_err_out_mean", "rel_err_low", "rel_err_high"]].values[0].tolist()
    assert shown == pytest.approx([0.2, 0.1018, 0.2982], abs=1e-4)


def test_bands_are_drawn_only_for_few_curves(tmp_path):
    for count, bands in ((10, 10), (11, 0)):
        rows = [
            fake_row(f"m{m:02}", budget=b, kv_head=h) for m in range(count) for b in (64, 128) for h in (0, 1)
        ]
        frame = load(write_results(tmp_path / str(count), rows))
        table = summarise(frame)
        assert len(panel(table).collections) == bands
        assert ("Without bands" in footnote(frame, table)) == (not bands)


ODD = {
    "one method, one budget, one head": [fake_row()],
    "one budget, two methods": [fake_row("h2o"), fake_row("tova")],
    "only methods without a budget": [fake_row("topp", budget="", rel_err=0.3)],
    "only the exact cache": [fake_row("exact", budget="", rel_err=0.0)],
    "only failures": [failed_row(), failed_row(kv_head=1)],
    "failures at one budget": [fake_row(budget=64), failed_row(budget=128), fake_row(budget=256)],
    "a layer that failed": [fake_row(layer=0), failed_row(layer=1)],
    "empty measures": [
        fake_row(kept_mass_mean="", total_bytes="", full_bytes="", peak_kept_tokens="", n_evictions="")
    ],
    "no model name": [fake_row(model="")],
    "six layers": [fake_row(layer=layer) for layer in range(6)],
    "more labels than colours and markers": [fake_row(f"method_{i}") for i in range(30)],
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD.keys())
def test_figures_are_drawn_with_missing_values(tmp_path, rows):
    # Thirty labels test nothing new in the PDF, and take twice as long as all others.
    frame = load(write_results(tmp_path, rows))
    figures = write_figures(frame, tmp_path / "figures", pdf=len(rows) < 30)
    bytes_known = any(row["rel_err_out_mean"] and row["total_bytes"] for row in rows)
    assert [figure.csv.stem for figure in figures].count("error_vs_bytes") == bytes_known
    pictures = [path for figure in figures for path in (figure.png, figure.narrow) if path]
    assert all(path.stat().st_size > 3000 for path in pictures)


def test_every_trace_gets_its_own_figures(tmp_path, monkeypatch):
    only_plots(monkeypatch, error_vs_bytes)
    rows = [fake_row(trace_id=letter * 64) for letter in "ab"]
    figures = write_figures(load(write_results(tmp_path, rows)), tmp_path, pdf=False)
    names = [f.png.name for f in figures if "error_vs_bytes" in f.png.name]
    assert names == [f"{letter * 8}_error_vs_bytes_page.png" for letter in "ab"]


def test_a_curve_runs_through_the_means_at_the_budgets(tmp_path):
    line = panel(points(tmp_path, [fake_row(budget=b, rel_err=16 / b) for b in (128, 64)])).lines[0]
    assert line.get_xydata().tolist() == [[64, 0.25], [128, 0.125]]


def test_a_method_without_a_budget_is_a_level_line(tmp_path):
    axes = panel(points(tmp_path, [fake_row("topp", budget="", rel_err=0.3)]))
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.3, 0.3]]


def test_an_error_of_zero_is_left_out_and_named_in_the_footnote(tmp_path):
    frame = load(write_results(tmp_path, [fake_row("exact", budget="", rel_err=0.0), fake_row()]))
    table = summarise(frame)
    assert list(drawable(table)["label"]) == ["h2o"]
    assert "Not drawn (no error beyond rounding, or no result): exact." in footnote(frame, table)


def test_a_point_with_failed_cells_is_hollow(tmp_path):
    rows = [fake_row(kv_head=h, budget=b) for h in range(2) for b in (64, 128)]
    rows[-1] = failed_row(kv_head=1, budget=128)
    faces = {}
    for line in panel(points(tmp_path, rows)).lines:
        if line.get_marker() == "o":
            faces |= dict.fromkeys(line.get_xdata(), to_hex(line.get_markerfacecolor()))
    assert faces == {64: "#0072b2", 128: "#ffffff"}


def test_methods_at_a_single_budget_are_drawn_side_by_side(tmp_path):
    axes = panel(points(tmp_path, [fake_row("h2o"), fake_row("tova")]))
    places = sorted({x for line in axes.lines for x in line.get_xdata()})
    assert len(places) == 2
    assert np.sqrt(places[0] * places[1]) == pytest.approx(64)


def test_the_footnote_names_methods_that_keep_later_tokens(tmp_path):
    rows = [fake_row("snapkv", {"phase": "oneshot"}), fake_row("h2o", {"phase": "stream"})]
    frame = load(write_results(tmp_path, rows))
    assert "every later token kept (compare by bytes): snapkv." in footnote(frame, summarise(frame))


def test_an_oracle_is_called_one_and_drawn_dashed(tmp_path):
    table = points(tmp_path, [fake_row("topk_oracle")])
    assert legend_text(table) == "topk_oracle (oracle, holds the full cache)"
    assert styles_for(["h2o", "topk_oracle"], {"topk_oracle"})["topk_oracle"].dashes == DASHED


def test_the_legend_gives_the_size_of_a_method_without_a_budget(tmp_path):
    table = points(tmp_path, [fake_row("subgen_stream", budget="", peak_kept_tokens=2600)])
    assert legend_text(table) == "subgen_stream (no budget, keeps 2600 tokens)"


def test_thirty_labels_all_look_different():
    found = styles_for([f"m{i:02}" for i in range(30)], {"m03", "m04"})
    # Dashes do not count: a scatter plot has none.
    assert len({(look.colour, look.marker) for look in found.values()}) == 30


def test_the_ticks_are_the_budgets_that_were_run():
    axes = new_figure(3.3).subplots()
    set_budget_axis(axes, [64, 200, 512], 3.0)
    assert list(axes.get_xticks()) == [64, 200, 512]


def test_budgets_too_close_to_print_lose_their_tick_but_not_their_place():
    axes = new_figure(3.3).subplots()
    set_budget_axis(axes, [64, 66, 512], 3.0)
    assert list(axes.get_xticks()) == [64, 512]


@pytest.mark.parametrize(("errors", "scale"), [([0.1, 0.2], "linear"), ([0.02, 0.2], "log"), ([], "linear")])
def test_the_error_axis_is_logarithmic_only_for_a_large_ratio(errors, scale):
    axes = new_figure(3.3).subplots()
    set_error_axis(axes, errors)
    assert axes.get_yscale() == scale


@pytest.mark.parametrize("count", [1, 20])
def test_axes_legend_and_footnote_do_not_overlap(count):
    with styled():
        figure = new_figure(3.3)
        axes = figure.subplots()
        axes.set_xlabel("budget")
        handles = [axes.plot([1, 2], [1, 2])[0] for _ in range(count)]
        finish(figure, handles, ["a label of some length"] * count, "a note " * 60, 2.0)
        drawn = figure.canvas.get_renderer()
        note, legend = (a.get_window_extent(drawn) for a in (figure.texts[0], figure.legends[0]))
        lowest = axes.get_tightbbox(drawn).y0
    assert 0 <= note.y0 < note.y1 <= legend.y0 < legend.y1 <= lowest
    assert note.x1 <= figure.bbox.width


def test_the_page_keeps_the_pdf_of_its_picture_and_removes_others(tmp_path):
    """`figures` draws PDF files, `report` does not: an old PDF may belong to other results."""
    frame = load(write_results(tmp_path, [fake_row()]))
    [picture] = pictures(error_vs_budget, frame)
    with styled():
        save(picture, tmp_path)
        pdf = tmp_path / "error_vs_budget_page.pdf"
        save(picture, tmp_path, pdf=False)
        assert pdf.is_file()
        [other] = pictures(error_vs_budget, load(write_results(tmp_path, [fake_row(rel_err=0.5)])))
        save(other, tmp_path, pdf=False)
        assert not pdf.is_file()
