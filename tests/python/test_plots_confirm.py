"""Figures of a folder with confirm.csv: offline error against loss, and the layers that predict it."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from caught_figures import caught_figures, pictures
from fake_confirm import confirm_rows, planted, six_methods, write_confirm
from kvanalysis import ResultsError, load
from kvanalysis.drawing.point_labels import label_points
from kvanalysis.drawing.style import new_figure, styled
from kvanalysis.plots.confirm import loss_against_error, loss_by_layer
from kvanalysis.plots.confirm.loss_axes import LINEAR, set_loss_axis
from matplotlib.text import Text
from test_kvanalysis_fake import TRACE, fake_row, write_results


def figures_of(plot, folder, widths=2):
    return caught_figures(plot, load(folder), widths)


def exceptional(folder, prompts=("p0",)):
    """Six methods in order, an oracle, a loss below zero, and one with a lower loss than its error
    predicts."""
    cells = six_methods(budgets=(64, 128)) | {
        ("static_oracle", 64): (-0.01, {"rel_err_out_mean": 0.02}),
        ("streaming_llm", 64): (0.11, {"rel_err_out_mean": 0.9}),
    }
    return planted(folder, cells, prompts)


@pytest.fixture(scope="module")
def of_exceptional(tmp_path_factory):
    """([figures of two texts at both widths], [their Picture])."""
    return figures_of(loss_against_error, exceptional(tmp_path_factory.mktemp("of"), ("p0", "p1")))


@pytest.mark.parametrize("plot", [loss_against_error, loss_by_layer])
def test_without_confirm_csv_nothing_is_drawn(tmp_path, plot):
    write_results(tmp_path, [fake_row()])
    assert pictures(plot, load(tmp_path)) == []


@pytest.mark.parametrize("plot", [loss_against_error, loss_by_layer])
def test_too_few_instances_for_a_correlation_are_not_drawn(tmp_path, plot):
    folder = planted(tmp_path, {("h2o", 64): (0.1, {}), ("tova", 64): (0.2, {})})
    assert figures_of(plot, folder) == ([], [])


@pytest.mark.parametrize("plot", [loss_against_error, loss_by_layer])
def test_six_of_many_texts_are_drawn_from_the_worst_predicted_to_the_best(tmp_path, plot):
    losses = (0.05, 0.12, 0.17, 0.22, 0.27, 0.35, 0.45, 0.55, 0.65)
    prompts = [f"p{number}" for number in range(len(losses))]
    folder = planted(tmp_path, six_methods(), prompts)
    # In each text the loss follows the error except for one instance, which moves one place further per text.
    table = pd.read_csv(folder / "confirm.csv", keep_default_na=False)
    for prompt, loss in zip(prompts, losses, strict=True):
        own = (table["prompt"] == prompt) & (table["method"] == "adakv") & (table["budget_tokens"] == 128)
        table.loc[own, "loss_increase"] = loss
    table.to_csv(folder / "confirm.csv", index=False)
    figures, _ = figures_of(plot, folder)
    for figure in figures:
        shown = [axes.get_title(loc="left").split(":")[0] for axes in figure.axes]
        assert shown == ["p0", "p2", "p3", "p5", "p6", "p8"]
        assert any("6 of 9 texts, evenly spaced from the worst" in text.get_text().replace("\n", " ")
                   for text in figure.findobj(Text))  # fmt: skip


def test_a_long_name_of_a_text_has_a_separate_line(tmp_path):
    name = "lines-0080-numbers-0004-001"
    figures, _ = figures_of(loss_against_error, exceptional(tmp_path, (name, "p1", "p2")))
    for figure in figures:
        titles = [axes.title if axes.get_title() else axes._left_title for axes in figure.axes]
        ends = [title.get_window_extent() for title in titles]
        assert all(box.x1 <= figure.bbox.x1 for box in ends)
        assert not any(one.overlaps(other) for one, other in combinations(ends, 2))
    assert figures[0].axes[0].get_title(loc="left").startswith(f"{name}\n")


def test_every_text_has_a_panel_with_its_correlation(of_exceptional):
    figures, [drawn] = of_exceptional
    for figure in figures:
        # The main measure predicts best here, so only it is drawn.
        assert [axes.get_title(loc="left").split(":")[0] for axes in figure.axes] == ["p0", "p1"]
        assert all("rank correlation 0." in axes.get_title(loc="left") for axes in figure.axes)
    assert "The engine’s main measure is the best" in drawn.caption
    table = drawn.table
    assert len(table) == 2 * 14 and set(table["measure_1"]) == {"rel_err_out_mean, mean"}


def test_the_best_measure_is_above_the_main_one_on_separate_axes(tmp_path):
    def other(number, place):
        return {"rel_err_fro": 0.01 * (1 + number) * (2 - place)}

    folder = planted(tmp_path, six_methods(lambda loss: 1 + loss % 0.13, other=other))
    figures, [drawn] = figures_of(loss_against_error, folder, widths=1)
    labels = [" ".join(axes.get_xlabel().split()) for axes in figures[0].axes]
    assert labels == [
        "ratio of norms, last rows, mean over layers", "mean relative error, mean over layers",
    ]  # fmt: skip
    assert drawn.caption.startswith(
        "ratio of norms, last rows, mean over layers: rank correlation 1.00 [1.00, 1.00]"
    )


def test_only_exceptions_are_named_with_their_budget(tmp_path, of_exceptional):
    for figure in of_exceptional[0]:
        named = [text.get_text() for text in figure.axes[0].texts]
        assert "streaming_llm 64" in named
        # Its partners in pairs are named, too, but neither oracles nor instances of the other budget.
        assert all(name.endswith(" 64") and not name.startswith("static") for name in named)
    figures, _ = figures_of(loss_against_error, planted(tmp_path, six_methods()), widths=1)
    assert not figures[0].axes[0].texts


def test_oracles_are_hollow_and_a_loss_below_zero_has_a_place(of_exceptional):
    axes = of_exceptional[0][0].axes[0]
    [oracle] = [
        line for line in axes.lines if list(line.get_ydata()) == [-0.01] and line.get_marker() != "None"
    ]
    assert oracle.get_markerfacecolor() == "white"
    low, high = axes.get_ylim()
    assert low < -0.01 and high > 0.6
    assert axes.get_yscale() == "symlog"


def test_an_instance_without_any_error_is_counted_below_the_figure(tmp_path):
    cells = six_methods() | {("exact", 64): (0.0, {"rel_err_out_mean": 0.0})}
    figures, _ = figures_of(loss_against_error, planted(tmp_path, cells), widths=1)
    assert "1 without any error cannot be shown" in " ".join(figures[0].texts[0].get_text().split())


def test_long_axis_labels_overlap_neither_each_other_nor_the_legend(tmp_path):
    def other(number, place):
        return {"rel_err_resid_mean": [0.05 * (1 + number) * (2 - place)] * 2 + [0.3 + (7 * number) % 5]}

    folder = planted(tmp_path, six_methods(lambda loss: 1 + loss % 0.13, other=other), ("p0", "p1", "p2"))
    for figure in figures_of(loss_against_error, folder)[0]:
        labels = [axes.xaxis.label.get_window_extent() for axes in figure.axes]
        assert not any(one.overlaps(other) for one, other in combinations(labels, 2))
        [legend] = figure.legends
        texts = [text.get_window_extent() for text in legend.get_texts()]
        assert not any(label.overlaps(text) for label in labels for text in texts)
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in labels)


def test_the_texts_of_a_measure_share_their_axes(tmp_path):
    rows, losses = [], []
    for prompt, scale in (("p0", 1), ("p1", 0.1)):
        for (method, budget), (loss, _) in six_methods().items():
            error = scale * loss
            rows.append(fake_row(method, budget=budget, seed="", prompt=prompt, rel_err=error, given={}))
            losses += confirm_rows(method, budget, scale * loss, prompt, layers="0")
    folder = write_confirm(write_results(tmp_path, rows), losses)
    for figure in figures_of(loss_against_error, folder)[0]:
        first, second = figure.axes
        assert first.get_xlim() == second.get_xlim() and first.get_ylim() == second.get_ylim()


def test_the_curves_over_layers_hold_all_correlations_and_their_bands(tmp_path):
    def layers(number, place):
        loss = 0.05 * (1 + number) * (2 - place)
        return {"rel_err_out_mean": [1 - loss, loss, 2 * loss, loss**2]}

    folder = planted(tmp_path, six_methods(other=layers), ("p0", "p1"), n_layers=4)
    figures, [drawn] = figures_of(loss_by_layer, folder)
    table = drawn.table
    assert list(table.loc[table["panel"] == "p0", "y"]) == pytest.approx([-1, 1, 1, 1])
    for figure in figures:
        assert [axes.get_title(loc="left") for axes in figure.axes] == ["p0", "p1"]
        low, high = figure.axes[0].get_ylim()
        assert low < -1 and high > 1
    assert "best layer 1 (1.00)" in drawn.caption


def test_two_compressed_layers_are_no_curve(tmp_path):
    assert figures_of(loss_by_layer, planted(tmp_path, six_methods(), n_layers=2)) == ([], [])


def test_each_trace_is_drawn_from_its_own_rows(tmp_path):
    """Rows of one trace do not count as foreign when another trace is drawn."""
    rows, losses = [], []
    for trace in (TRACE, "b" * 64):
        for (method, budget), (loss, _) in six_methods().items():
            rows.append(fake_row(method, budget=budget, seed="", rel_err=loss, given={}, trace_id=trace))
            losses += confirm_rows(method, budget, loss, layers="0", trace_id=trace)
    write_confirm(write_results(tmp_path, rows), losses)
    names = [picture.name for picture in pictures(loss_against_error, load(tmp_path))]
    assert names == ["5f0c3a9d_loss_against_error", "bbbbbbbb_loss_against_error"]


def test_rows_of_other_results_stop_the_figures(tmp_path):
    folder = planted(tmp_path, six_methods(), more=confirm_rows("subgen"))
    with pytest.raises(ResultsError, match="subgen"):
        pictures(loss_against_error, load(folder))


# Labels and axes


def boxes(axes, written):
    renderer = axes.figure.canvas.get_renderer()
    found = [Text.get_window_extent(text, renderer) for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == written
    return found


def test_labels_avoid_each_other_and_points_and_stay_inside_the_axes():
    random = np.random.default_rng(0)
    points = random.uniform(0.05, 0.95, (40, 2))
    with styled():
        figure = new_figure(4)
        axes = figure.subplots()
        axes.plot(*points.T, "o", markersize=3)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        wanted = [(*point, f"method {number}") for number, point in enumerate(points[:12])]
        written = label_points(axes, wanted, [tuple(point) for point in points])
        figure.draw_without_rendering()
    assert len(written) >= 8 and written == [text for _, _, text in wanted if text in written]
    found = boxes(axes, written)
    assert not any(one.overlaps(other) for one, other in combinations(found, 2))
    for box in found:
        assert not any(box.contains(*axes.transData.transform(point)) for point in points)
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1


def test_labels_of_one_place_and_of_a_corner_find_room():
    wanted = [(0.5, 0.5, "first here"), (0.5, 0.5, "second here"), (0.99, 0.99, "in the corner")]
    with styled():
        figure = new_figure(3)
        axes = figure.subplots()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        assert label_points(axes, wanted, [(0.5, 0.5), (0.99, 0.99)]) == [text for _, _, text in wanted]
        figure.draw_without_rendering()
    first, second, corner = boxes(axes, [text for _, _, text in wanted])
    assert not first.overlaps(second)
    assert corner.x1 <= axes.bbox.x1 and corner.y1 <= axes.bbox.y1


def test_a_label_without_a_free_place_is_left_out():
    points = [(x / 40, y / 40) for x in range(41) for y in range(41)]
    with styled():
        axes = new_figure(2).subplots()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        assert label_points(axes, [(0.5, 0.5, "nowhere to go")], points) == []
        assert not axes.texts


@pytest.mark.parametrize(
    ("losses", "ticks"),
    [
        ([0.001, 0.01], [0, 0.02, 0.05]),
        ([-0.06, 0.4], [-0.05, -0.02, 0, 0.02, 0.05, 0.1, 0.2, 0.5]),
        ([0.01, 3.0], [0, 0.05, 0.1, 0.5, 1]),
        ([0.01, 30.0], [0, 0.1, 1, 10]),
    ],
)
def test_losses_have_ticks_at_plain_numbers_and_at_zero(losses, ticks):
    with styled():
        axes = new_figure(3).subplots()
        set_loss_axis(axes, losses)
        assert list(axes.yaxis.get_ticklocs()) == pytest.approx(ticks)
        low, high = axes.get_ylim()
    assert low < min(0, *losses) and high > max(losses) and high > LINEAR
