"""The inverse question and the knee: rules by hand, and the figures drawn of them."""

import numpy as np
import pytest
from fake_figure import fake_context, sketch
from kvanalysis.budgets.inverse import (
    AT_MOST,
    INTERPOLATED,
    MORE_THAN,
    RUN,
    needed_budget,
    needed_budgets,
    over_heads,
)
from kvanalysis.budgets.knee import knee
from kvanalysis.data.load import load
from kvanalysis.errors import FigureError
from test_kvanalysis_fake import failed_row, fake_row, fake_rows, write_results

BUDGETS = [64, 128, 256, 512]


@pytest.mark.parametrize(
    ("errors", "epsilon", "expected"),
    [
        # The error is 16 / budget: 0.1 is reached at 160.
        ([0.25, 0.125, 0.0625, 0.03125], 0.1, (160, INTERPOLATED, 256)),
        ([0.25, 0.125, 0.0625, 0.03125], 0.125, (128, RUN, 128)),
        ([0.25, 0.125, 0.0625, 0.03125], 0.25, (64, AT_MOST, 64)),
        ([0.25, 0.125, 0.0625, 0.03125], 0.03, (512, MORE_THAN, np.nan)),
        # It falls below 0.1 at once and rises again: only what lies after the last rise counts.
        ([0.05, 0.2, 0.05, 0.05], 0.1, (128 * np.sqrt(2), INTERPOLATED, 256)),
        ([0.05, 0.05, 0.05, 0.2], 0.1, (512, MORE_THAN, np.nan)),
        # No logarithm of an error of zero, and none of one that is missing: the next budget that was run.
        ([0.2, 0.0, 0.0, 0.0], 0.1, (128, RUN, 128)),
        ([0.2, np.nan, 0.05, 0.05], 0.1, (256, RUN, 256)),
    ],
)
def test_the_needed_budget_is_the_smallest_from_which_on_all_larger_ones_suffice(errors, epsilon, expected):
    budget, state, run = needed_budget(BUDGETS, errors, epsilon)
    assert (round(budget, 9), state) == (round(expected[0], 9), expected[1])
    assert run == expected[2] or (np.isnan(run) and np.isnan(expected[2]))


def frame_of(folder, rows):
    return load(write_results(folder, rows))


def test_seeds_are_averaged_before_the_question_is_asked(tmp_path):
    rows = [
        fake_row("uniform", budget=b, seed=s, rel_err=e)
        for b, s, e in ((64, 0, 0.1), (64, 1, 0.3), (128, 0, 0.1))
    ]
    needed = needed_budgets(frame_of(tmp_path, rows), [0.2])
    assert needed[["budget_needed", "state", "n_budgets"]].values.tolist() == [[64, AT_MOST, 2]]


def test_the_median_over_heads_counts_a_head_that_no_budget_suffices_for_as_infinite(tmp_path):
    errors = {0: (0.05, 0.05), 1: (0.4, 0.1), 2: (0.9, 0.8)}
    rows = [
        fake_row(kv_head=h, budget=b, rel_err=e)
        for h, es in errors.items()
        for b, e in zip((64, 128), es, strict=True)
    ]
    [row] = over_heads(needed_budgets(frame_of(tmp_path, rows), [0.2])).to_dict("records")
    # Heads need at most 64, 64 * 2^(1/2) and more than 128.
    assert row["budget_needed"] == pytest.approx(64 * np.sqrt(2))
    assert (row["state"], row["n_at_most"], row["n_more_than"]) == (INTERPOLATED, 1, 1)
    assert (row["low"], row["high"]) == (64, np.inf)
    hard = [fake_row(kv_head=h, budget=b, rel_err=0.9) for h in range(3) for b in (64, 128)]
    [row] = over_heads(needed_budgets(frame_of(tmp_path, hard), [0.2])).to_dict("records")
    assert (row["budget_needed"], row["state"]) == (128, MORE_THAN)


def test_the_knee_lies_farthest_below_the_chord_and_a_power_law_has_none():
    assert knee(BUDGETS, [0.64, 0.08, 0.04, 0.02])[:2] == (128, 0.08)
    # Depth by hand: the chord stands at 2/3, the point at log(4)/log(32).
    assert knee(BUDGETS, [0.64, 0.08, 0.04, 0.02])[2] == pytest.approx(2 / 3 - 2 / 5)
    for errors in ([0.8, 0.4, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.8, 0.7, 0.5, 0.1], [0.8, 0.1, 0.1, 0.0]):
        assert np.isnan(knee(BUDGETS, errors)[0]), errors
    assert np.isnan(knee([64, 128], [0.5, 0.1])[0])


def test_the_figures_hold_the_needed_budgets_of_every_head(tmp_path):
    rows = [fake_row(layer=7, kv_head=h, budget=b, rel_err=16 / b) for h in range(2) for b in BUDGETS]
    plot = sketch(
        fake_context(tmp_path, "inverse_epsilon", {"run": rows}, epsilon=0.1, epsilons=[0.2]), painted=True
    )
    heads = plot.table()
    assert heads[["label", "layer", "kv_head", "epsilon"]].values.tolist() == [
        ["h2o", 7, h, 0.1] for h in (0, 1)
    ]
    assert heads["budget_needed"].tolist() == pytest.approx([160, 160])
    curves = plot.table(1)
    assert curves["budget_needed"].tolist() == pytest.approx([160, 80])
    assert plot.table(2)["mean_error"].tolist() == pytest.approx([16 / b for b in BUDGETS] * 2)
    assert "of 2 heads 0 need at most the smallest budget, 0 more than the largest" in plot.figures[0].caption


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


def test_a_whole_sweep_is_drawn_and_other_measures_can_be_asked_for(tmp_path):
    context = fake_context(
        tmp_path, "inverse_epsilon", {"run": fake_rows()}, measure="eps_spectral_mean", epsilon=0.03
    )
    heads = sketch(context).table()
    assert set(heads["measure"]) == {"eps_spectral_mean"}
    assert not set(heads["label"]) & {"exact", "subgen_stream"}  # no budget, no question


def test_what_cannot_be_asked_is_said(tmp_path):
    with pytest.raises(FigureError, match="no finished cell has a budget"):
        sketch(fake_context(tmp_path, "inverse_epsilon", {"run": [fake_row("topp", budget="")]}))
    with pytest.raises(FigureError, match="measure: n_evictions is none of rel_err_out_mean"):
        sketch(fake_context(tmp_path, "inverse_epsilon", {"run": [fake_row()]}, measure="n_evictions"))
