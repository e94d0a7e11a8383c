"""Axes of several figures: their visible ticks, and elements that must stay inside."""

import numpy as np
import pytest
from caught_figures import caught_figures
from kvanalysis import load
from kvanalysis.drawing.budget_axes import set_error_axis
from kvanalysis.drawing.log_ticks import DECADES, DENSE, plain_log
from kvanalysis.drawing.style import new_figure, styled
from kvanalysis.plots.budgets import budget_for_epsilon
from kvanalysis.plots.run import layer_head_map
from kvanalysis.sweeps.products import write_epsilon
from test_kvanalysis_fake import fake_row, write_results


def drawn_figures(plot, frame):
    figures, _ = caught_figures(plot, frame)
    assert figures
    return figures


def shown_ticks(axis, minor=False):
    low, high = sorted(axis.get_view_interval())
    return [x for x in axis.get_ticklocs(minor=minor) if low * 0.999 <= x <= high * 1.001]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.22, 1.8, [0.3, 0.5, 1]),  # 1-2-5 would only give 0.5 and 1
        (0.51, 1.9, [0.7, 1, 1.5]),
        (0.09, 1.2, [0.1, 0.2, 0.5, 1]),
        (1.01, 9.9, [2, 3, 5]),
    ],
)
def test_a_logarithmic_error_axis_has_three_labels_and_small_ticks_between_them(low, high, ticks):
    with styled():
        axes = new_figure(3.3).subplots()
        axes.set_yscale("log")
        plain_log(axes.yaxis)
        axes.set_ylim(low, high)
        assert shown_ticks(axes.yaxis) == pytest.approx(ticks)
        labels = axes.yaxis.get_major_formatter().format_ticks(ticks)
        assert labels == [f"{tick:g}" for tick in ticks]
        small = shown_ticks(axes.yaxis, minor=True)
        assert len(small) >= 3
        assert np.ptp(np.diff(small)) > 0.01  # uneven, as on a logarithmic axis
        assert not any(label.get_text() for label in axes.yaxis.get_minorticklabels())


@pytest.mark.parametrize(("subs", "high", "count"), [(DECADES, 2e3, 4), (DECADES, 50, 4), (DENSE, 1e3, 10)])
def test_extra_ticks_are_drawn_only_where_ticks_are_few(subs, high, count):
    with styled():
        axes = new_figure(3.3).subplots()
        axes.set_xscale("log")
        plain_log(axes.xaxis, subs)
        axes.set_xlim(1, high)
        assert len(shown_ticks(axes.xaxis)) == count


def test_an_error_axis_that_spans_little_is_linear_and_without_small_ticks():
    with styled():
        axes = new_figure(3.3).subplots()
        axes.plot([1, 2], [0.3, 1.3])
        set_error_axis(axes, [0.3, 1.3])
        assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", 0)
        assert not len(axes.yaxis.get_minorticklocs())


def answered(folder, needed):
    """The frame of a folder with epsilon.csv; `needed`: each head's smallest budget that meets 0.1."""
    tried = sorted({16, 512, *needed} - {None})
    rows = [
        fake_row(budget=budget, kv_head=head, rel_err=0.05 if least and budget >= least else 0.4)
        for head, least in enumerate(needed)
        for budget in tried
    ]
    frame = load(write_results(folder, rows))
    write_epsilon(folder, frame, "rel_err_out_mean", [0.1])
    return frame


@pytest.mark.parametrize(
    ("needed", "ends"),
    [
        ([64, 85, 85, 155], [(64, 85)]),  # half of the heads need 85, a quarter 64
        ([85, 85, 300, 300], [(85, 300)]),
        ([64, 85, None, None], [(64, np.inf)]),
    ],
)
def test_the_bars_of_a_budget_that_an_epsilon_needs_end_within_the_axes_or_nowhere(tmp_path, needed, ends):
    for figure in drawn_figures(budget_for_epsilon, answered(tmp_path, needed)):
        [axes] = figure.axes
        low, high = axes.get_ylim()
        [bars] = axes.collections
        found = [tuple(segment[:, 1]) for segment in bars.get_segments()]
        assert [start for start, _ in found] == [start for start, _ in ends]
        for (start, stop), (_, end) in zip(found, ends, strict=True):
            assert low < start
            # A bar without an end extends to the edge, others stop before it.
            assert stop == pytest.approx(high) if np.isinf(end) else stop == end < high


def test_few_tokens_have_labelled_ticks_as_well(tmp_path):
    for figure in drawn_figures(budget_for_epsilon, answered(tmp_path, [70, 75, 80, 110])):
        assert len(shown_ticks(figure.axes[0].yaxis)) >= 3


@pytest.mark.parametrize(("layers", "heads", "error"), [(5, 3, 0.1), (1, 2, 0.1), (30, 2, 0.001)])
def test_the_scale_of_the_maps_and_its_label_are_inside_the_figure(tmp_path, layers, heads, error):
    rows = [
        fake_row(method, layer=layer, kv_head=head, rel_err=error * (1 + 20 * head))
        for method in ("h2o", "tova")
        for layer in range(layers)
        for head in range(heads)
    ]
    for figure in drawn_figures(layer_head_map, load(write_results(tmp_path, rows))):
        scale = figure.axes[-1]
        whole = figure.bbox
        assert " ".join(scale.get_ylabel().split()) == "mean rel. error"
        for text in (scale.yaxis.label, *scale.get_yticklabels()):
            box = text.get_window_extent()
            assert whole.x0 <= box.x0 and box.x1 <= whole.x1, (text.get_text(), box)
            assert text is not scale.yaxis.label or (whole.y0 <= box.y0 and box.y1 <= whole.y1)
