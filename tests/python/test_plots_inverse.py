"""The inverse question and the knee: rules by hand, and their figures."""

import numpy as np
import pytest
from fake_figure import fake_context, sketch
from kvanalysis.budgets.knee import knee, mean_curves
from kvanalysis.budgets.search import epsilon_table, labelled, over_heads
from kvanalysis.data.load import load
from kvanalysis.drawing.style import styled
from kvanalysis.errors import FigureError
from test_kvanalysis_fake import failed_row, fake_row, fake_rows, write_results

BUDGETS = [64, 128, 256, 512]


def needed(folder, rows, epsilons, measure="rel_err_out_mean"):
    frame = load(write_results(folder, rows))
    return over_heads(labelled(epsilon_table(frame, measure, epsilons), frame))


def test_a_curve_that_rises_again_has_one_answer_and_it_is_a_budget_that_was_replayed(tmp_path):
    # It first meets 0.1 at 32, and between 64 and 128 a power of the budget would cross it at 73.9.
    errors = {16: 0.4, 32: 0.09, 64: 0.11, 128: 0.07, 256: 0.05}
    rows = [fake_row(budget=b, rel_err=e) for b, e in errors.items()]
    [row] = needed(tmp_path, rows, [0.1]).to_dict("records")
    assert (row["quarter"], row["half"], row["most"]) == (128, 128, 128)
    assert (row["met"], row["at_smallest"], row["smaller_meets"]) == (1, 0, 1)
    plot = sketch(fake_context(tmp_path / "drawn", "inverse_epsilon", {"run": rows}, epsilon=0.1))
    assert plot.table()["budget_tokens"].dropna().unique().tolist() == [128]
    curve = plot.table(1)
    assert curve[curve["epsilon"] == 0.1]["half"].tolist() == [128]


def test_seeds_are_averaged_before_the_search(tmp_path):
    rows = [
        fake_row("uniform", budget=b, seed=s, rel_err=e)
        for b, s, e in ((64, 0, 0.1), (64, 1, 0.29), (128, 0, 0.1), (128, 1, 0.1))
    ]
    [row] = needed(tmp_path, rows, [0.2]).to_dict("records")
    assert (row["half"], row["at_smallest"]) == (64, 1)


def test_a_head_that_no_budget_suffices_for_counts_as_infinite(tmp_path):
    errors = {0: (0.05, 0.05), 1: (0.4, 0.1), 2: (0.9, 0.8)}
    rows = [
        fake_row(kv_head=h, budget=b, rel_err=e)
        for h, es in errors.items()
        for b, e in zip((64, 128), es, strict=True)
    ]
    [row] = needed(tmp_path, rows, [0.2]).to_dict("records")
    assert (row["quarter"], row["half"], row["most"]) == (64, 128, np.inf)
    assert (row["met"], row["at_smallest"], row["heads"]) == (2, 1, 3)


def test_the_knee_lies_farthest_below_the_chord_and_a_power_law_has_none():
    assert knee(BUDGETS, [0.64, 0.08, 0.04, 0.02])[:2] == (128, 0.08)
    # Depth by hand: the chord is at 2/3, the point at log(4)/log(32).
    assert knee(BUDGETS, [0.64, 0.08, 0.04, 0.02])[2] == pytest.approx(2 / 3 - 2 / 5)
    for errors in ([0.8, 0.4, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.8, 0.7, 0.5, 0.1], [0.8, 0.1, 0.1, 0.0]):
        assert np.isnan(knee(BUDGETS, errors)[0]), errors
    assert np.isnan(knee([64, 128], [0.5, 0.1])[0])


def test_the_band_of_a_mean_curve_counts_the_heads_of_a_layer_once(tmp_path):
    # Means of layers 1 to 5: 3, plus or minus 2.776 sqrt(2.5 / 5), for any number of heads per layer.
    rows = [
        fake_row(layer=layer, kv_head=head, budget=budget, rel_err=layer + 1)
        for layer in range(5)
        for head in range(3)
        for budget in (64, 128)
    ]
    found = mean_curves(load(write_results(tmp_path, rows)))
    reach = 2.776445 * np.sqrt(0.5)
    assert found[["budget", "n_heads"]].values.tolist() == [[64, 15], [128, 15]]
    assert found[["mean_error", "low", "high"]].values == pytest.approx(
        np.array([[3, 3 - reach, 3 + reach]] * 2)
    )


def test_the_figures_hold_the_needed_budgets_of_every_head(tmp_path):
    # The error is 16 / budget: at most 0.1 from 256 on, at most 0.2 from 128 on.
    rows = [fake_row(layer=7, kv_head=h, budget=b, rel_err=16 / b) for h in range(2) for b in BUDGETS]
    plot = sketch(
        fake_context(tmp_path, "inverse_epsilon", {"run": rows}, epsilon=0.1, epsilons=[0.2]), painted=True
    )
    heads = plot.table()
    names = ["label", "layer", "kv_head", "epsilon", "budget_tokens", "budget_below"]
    assert heads[names].values.tolist() == [["h2o", 7, h, 0.1, 256, 128] for h in (0, 1)]
    assert plot.table(1)["half"].tolist() == [256, 128]
    assert plot.table(2)["mean_error"].tolist() == pytest.approx([16 / b for b in BUDGETS] * 2)
    assert (
        "of 2 heads 0 meet it at the smallest budget, 0 miss it at the largest, half of them at 256 tokens"
        in plot.figures[0].caption
    )


def texts_of(picture):
    _, width = picture.widths[0]
    with styled():
        figure = picture.draw(width)
    return {text.get_text() for axes in figure.axes for text in axes.texts}


def test_a_map_marks_heads_at_the_smallest_budget_and_beyond_the_largest(tmp_path):
    curves = {0: (0.1, 0.05), 1: (0.3, 0.1), 2: (0.1, 0.3)}
    rows = [
        fake_row(kv_head=h, budget=b, rel_err=e)
        for h, errors in curves.items()
        for b, e in zip((64, 128), errors, strict=True)
    ]
    plot = sketch(fake_context(tmp_path, "inverse_epsilon", {"run": rows}, epsilon=0.2))
    assert texts_of(plot.figures[0]) == {"\u226464", "128", ">128"}


ODD = {
    "one budget of one head, no budget suffices": [fake_row(rel_err=0.9)],
    "three traces, layers with different heads, errors of zero, failures alone": [
        *(fake_row(trace_id="a" * 64, budget=b, rel_err=0.0) for b in BUDGETS),
        *(fake_row(trace_id="b" * 64, layer=i, kv_head=i, budget=b) for i in (0, 1) for b in BUDGETS),
        failed_row(budget=1024),
    ],
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD.keys())
def test_the_inverse_figures_are_drawn_whatever_the_results_are(tmp_path, rows):
    traces = len({row["trace_id"] for row in rows if row["status"] == "ok"})
    assert len(sketch(fake_context(tmp_path, "inverse_epsilon", {"run": rows})).figures) == 3 * traces


def test_a_whole_sweep_is_drawn_for_any_measure(tmp_path):
    context = fake_context(
        tmp_path, "inverse_epsilon", {"run": fake_rows()}, measure="eps_spectral_mean", epsilon=0.03
    )
    heads = sketch(context).table()
    assert set(heads["measure"]) == {"eps_spectral_mean"}
    assert not set(heads["label"]) & {"exact", "subgen_stream"}  # methods without a budget have no answer


def test_an_impossible_question_is_refused(tmp_path):
    with pytest.raises(FigureError, match="no finished cell has a budget"):
        sketch(fake_context(tmp_path, "inverse_epsilon", {"run": [fake_row("topp", budget="")]}))
    with pytest.raises(FigureError, match="measure: n_evictions is not one of rel_err_out_mean"):
        sketch(fake_context(tmp_path, "inverse_epsilon", {"run": [fake_row()]}, measure="n_evictions"))
