"""Figures of predicted losses: predicted against measured nats, and their distribution over the model."""

from itertools import combinations

import numpy as np
import pytest
from caught_figures import caught_figures, pictures
from fake_confirm import confirm_rows, planted, six_methods, write_confirm
from kvanalysis import load
from kvanalysis.drawing.style import styled
from kvanalysis.loss.predicted import Losses
from kvanalysis.plots import pictures_of
from kvanalysis.plots.confirm import loss_against_error, predicted_loss
from kvanalysis.plots.run import loss_by_head
from test_kvanalysis_fake import COLUMNS, fake_row, write_results

FACTOR = 1.25  # measured over predicted


def confirmed_losses(folder, prompts=("a", "b"), more=None):
    """(table, Losses) of six methods at two budgets whose measured KL is FACTOR times the prediction."""
    cells = six_methods() | (more or {})
    frame = load(planted(folder, cells, prompts))
    table = frame.drop_duplicates(["prompt", "label", "budget_tokens"])
    table = table[["trace_id", "prompt", "label", "budget_tokens"]].reset_index(drop=True)
    # `planted` measures a KL of a hundredth of the loss.
    lost = [cells[row.label, row.budget_tokens][0] / 100 for row in table.itertuples()]
    kl = np.array(lost) / FACTOR
    return frame, Losses(table.assign(kl=kl, kl_low=kl / 2, kl_high=kl * 2, kl_mean=lost, layers=3))


def drawn(frame, losses, plot=predicted_loss, widths=2):
    """([figures at all widths], the Pictures) with known losses; `widths=1`: page width only."""
    found = list(pictures_of(frame, [plot], losses=losses))
    with styled():
        figures = [picture.draw(width) for picture in found for _, width in picture.widths[:widths]]
        for figure in figures:
            figure.draw_without_rendering()
    return figures, found


def test_every_text_has_a_panel_with_its_correlation_and_its_factor(tmp_path):
    figures, [picture] = drawn(*confirmed_losses(tmp_path))
    for figure in figures:
        titles = [axes.get_title(loc="left").split("\n") for axes in figure.axes]
        assert titles == [[text, "rank correlation 1.00, factor 1.25"] for text in "ab"]
        for axes in figure.axes:
            assert axes.get_xlim() == axes.get_ylim() == figure.axes[0].get_xlim()
            assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "a: rank correlation 1.00, factor 1.25, scatter ×1.00 (12 instances)" in picture.caption
    assert len(picture.table) == 24


def test_predictions_are_horizontal_with_their_interval_and_measurements_vertical(tmp_path):
    figures, _ = drawn(*confirmed_losses(tmp_path), widths=1)
    axes = figures[0].axes[0]
    marks = [line.get_xydata() for line in axes.lines if line.get_marker() != "None"]
    # The first of the six methods, with a KL of 0.001 and 0.0005.
    least = min(marks, key=np.min)
    assert least == pytest.approx(np.array([[0.001 / FACTOR, 0.001], [0.0005 / FACTOR, 0.0005]]))
    spans = [segment for lines in axes.collections for segment in lines.get_segments()]
    assert len(spans) == 12
    for (left, below), (right, above) in spans:
        assert below == above
        assert right == pytest.approx(4 * left)


def test_titles_and_labels_do_not_overlap(tmp_path):
    for figure in drawn(*confirmed_losses(tmp_path, ("manual", "program", "story")))[0]:
        boxes = [axes._left_title.get_window_extent() for axes in figure.axes]
        boxes += [axes.yaxis.label.get_window_extent() for axes in figure.axes if axes.get_ylabel()]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_instances_with_hardly_any_loss_are_counted_but_not_drawn(tmp_path):
    more = {("exact", 64): (0.0, {}), ("exact", 128): (1e-6, {})}
    figures, [picture] = drawn(*confirmed_losses(tmp_path, ("a",), more))
    for figure in figures:
        assert figure.axes[0].get_xlim()[0] > 1e-4
        assert "2 with almost no loss are only in the CSV" in " ".join(figure.texts[0].get_text().split())
    assert len(picture.table) == 14
    assert "(13 instances)" in picture.caption  # instances without a loss would inflate the correlation


def test_without_a_gradient_or_a_confirmation_there_is_no_comparison(tmp_path):
    frame, losses = confirmed_losses(tmp_path)
    assert pictures(predicted_loss, frame) == []
    assert list(pictures_of(frame, [predicted_loss], losses=Losses(losses.table.assign(kl=np.nan)))) == []
    (tmp_path / "confirm.csv").unlink()
    assert list(pictures_of(frame, [predicted_loss], losses=losses)) == []


def test_the_axis_of_a_predicted_loss_is_in_nats(tmp_path):
    def other(number, place):
        return {"kl_head_mean": 0.01 * (1 + number) * (2 - place)}

    # The main measure has the opposite order, so that nats are the best measure.
    frame = load(planted(tmp_path, six_methods(lambda loss: 1 - loss, other=other)))
    labels = [
        " ".join(axes.get_xlabel().split())
        for axes in caught_figures(loss_against_error, frame, widths=1)[0][0].axes
    ]
    assert labels == [
        "nats of single heads, mean over layers [nats/token]", "mean relative error, mean over layers",
    ]  # fmt: skip


def test_the_figure_and_the_page_agree_on_the_best_measure(tmp_path):
    frame, losses = confirmed_losses(tmp_path)
    figures, _ = drawn(
        frame.assign(rel_err_out_mean=1 - frame["rel_err_out_mean"]), losses, loss_against_error, widths=1
    )
    label = " ".join(figures[0].axes[0].get_xlabel().split())
    assert label == "predicted KL, all layers together [nats/token]"


# Maps of the loss


def heads(folder, kl, **changes):
    """A table of methods from the losses of their heads: kl {method: [layers, heads]}."""
    rows = [
        fake_row(method, layer=layer, kv_head=head, kl_head_mean=value, **changes)
        for method, by_layer in kl.items()
        for layer, own in enumerate(by_layer)
        for head, value in enumerate(own)
    ]
    return load(write_results(folder, rows, columns=[*COLUMNS, "kl_head_mean"]))


def test_the_caption_names_the_loss_of_each_third_of_the_layers(tmp_path):
    frame = heads(tmp_path, {"h2o": [[1, 1], [2, 2], [8, 6]], "tova": [[0.5, 0.5], [0.5, 0.5], [1, 1]]})
    [picture] = pictures(loss_by_head, frame)
    # Shares 10, 20, 70 % and 25, 25, 50 %.
    words = "18 % on the first third, 22 % on the middle third, 60 % on the last third of the layers"
    assert f"Share of the loss: {words} (mean over 2 methods)" in picture.caption
    assert "layer 2 kv head 0 (32 %)" in picture.caption


def test_some_of_many_methods_are_drawn_from_the_lowest_loss_to_the_highest(tmp_path):
    frame = heads(tmp_path, {f"m{n}": [[n + 1.0, n + 2.0]] for n in range(9)})
    page, column = caught_figures(loss_by_head, frame)[0]
    for figure, shown in ((page, ["m0", "m2", "m4", "m6", "m8"]), (column, ["m0", "m3", "m5", "m8"])):
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles[:-1] == shown  # the last axes is the scale
        told = " ".join(figure.texts[0].get_text().split())
        assert f"{len(shown)} of 9 methods, evenly spaced from the lowest loss to the highest" in told


def test_all_maps_share_a_logarithmic_scale_on_which_no_loss_is_palest(tmp_path):
    frame = heads(tmp_path, {"h2o": [[1e-3, 0.0]], "tova": [[1e-9, 0.1]], "exact": [[0.0, 0.0]]})
    figures, [picture] = caught_figures(loss_by_head, frame)
    assert set(picture.table["label"]) == {"h2o", "tova"}
    for figure in figures:
        [norm] = {image.norm for axes in figure.axes[:-1] for image in axes.images}
        assert (norm.vmin, norm.vmax) == pytest.approx((1e-5, 0.1))
        assert [float(norm(value)) for value in (0.0, 1e-9, 0.1)] == [0, 0, 1]


def test_the_middle_budget_is_drawn_of_several(tmp_path):
    rows = [
        fake_row(method, budget=budget, kv_head=head, kl_head_mean=1 / budget)
        for method in ("h2o", "tova")
        for budget in (64, 128, 256)
        for head in (0, 1)
    ]
    [picture] = pictures(
        loss_by_head, load(write_results(tmp_path, rows, columns=[*COLUMNS, "kl_head_mean"]))
    )
    assert picture.title.endswith("B = 128")
    assert set(picture.table["kl_head_mean"]) == {1 / 128}


@pytest.mark.parametrize("kl", ["", 0.0])
def test_without_a_gradient_or_a_loss_there_is_no_map(tmp_path, kl):
    assert pictures(loss_by_head, heads(tmp_path, {"h2o": [[kl, kl]]})) == []


def test_a_table_without_the_column_has_no_map(tmp_path):
    assert pictures(loss_by_head, load(write_results(tmp_path, [fake_row(kv_head=h) for h in (0, 1)]))) == []


def test_one_run_of_the_model_is_a_point_without_a_correlation(tmp_path):
    rows = [fake_row("h2o", layer=layer, given={}, seed="") for layer in range(3)]
    frame = load(write_confirm(write_results(tmp_path, rows), confirm_rows("h2o", layers="0-2")))
    table = frame.iloc[:1][["trace_id", "prompt", "label", "budget_tokens"]]
    one = Losses(table.assign(kl=0.001, kl_low=np.nan, kl_high=np.nan, kl_mean=0.001, layers=3))
    figures, [picture] = drawn(frame, one)
    assert [axes.get_title(loc="left") for axes in figures[0].axes] == ["p0"]
    assert "Too few instances" in picture.caption
