"""Claims of configurations: which rows they take and when they hold; sheets of curves."""

import pandas as pd
import pytest
from fake_figure import draw, make_context
from kvanalysis import load
from kvanalysis.drawing.curve_axes import Axis
from kvanalysis.drawing.curves import Sheet, curves_picture
from kvanalysis.drawing.style import styled
from kvanalysis.errors import FigureError
from kvanalysis.stats.claims import Claim, judged, read_claims, select
from kvanalysis.stats.intervals import head_points
from kvanalysis.stats.verdict import FAILS, HOLDS, MIXED, UNDECIDED
from kvanalysis.stats.words import BAND_NOTE
from test_kvanalysis_fake import failed_row, fake_row, write_results

LAYERS = range(5)


def rows_of(method, errors, budget=64, **more):
    """A row per layer."""
    return [fake_row(method, layer=i, budget=budget, rel_err=e, **more) for i, e in enumerate(errors)]


def claim(**more):
    return Claim(
        **{"claim": "a", "source": "b", "lower": {"method": "h2o"}, "higher": {"method": "tova"}} | more
    )


def judged_rows(folder, rows, **more):
    return judged(claim(**more), load(write_results(folder, rows)))


LOW, HIGH = (0.1, 0.2, 0.1, 0.2, 0.15), (0.3, 0.5, 0.3, 0.5, 0.4)


def test_a_claim_holds_fails_or_is_not_decided_by_the_interval_over_layers(tmp_path):
    crossing = (0.3, 0.1, 0.3, 0.1, 0.2)
    assert judged_rows(tmp_path, rows_of("h2o", LOW) + rows_of("tova", HIGH)).outcome == HOLDS
    assert judged_rows(tmp_path, rows_of("h2o", HIGH) + rows_of("tova", LOW)).outcome == FAILS
    assert judged_rows(tmp_path, rows_of("h2o", (0.2,) * 5) + rows_of("tova", crossing)).outcome == UNDECIDED


def test_four_layers_with_three_heads_each_decide_no_claim(tmp_path):
    rows = [
        fake_row(method, layer=layer, kv_head=head, rel_err=error + 0.01 * head)
        for method, error in (("h2o", 0.1), ("tova", 0.5))
        for layer in range(4)
        for head in range(3)
    ]
    assert judged_rows(tmp_path, rows).outcome == UNDECIDED


def test_most_budgets_decide_unless_one_says_the_contrary(tmp_path):
    holds = [r for b in (64, 128) for r in rows_of("h2o", LOW, b) + rows_of("tova", HIGH, b)]
    even = rows_of("h2o", LOW, 256) + rows_of("tova", LOW, 256)
    contrary = rows_of("h2o", HIGH, 256) + rows_of("tova", LOW, 256)
    assert judged_rows(tmp_path, holds + even).outcome == HOLDS
    assert judged_rows(tmp_path, holds + contrary).outcome == MIXED
    assert judged_rows(tmp_path, holds + contrary, budgets="low").outcome == HOLDS


def test_a_factor_is_part_of_the_claim(tmp_path):
    rows = rows_of("h2o", LOW) + rows_of("tova", [1.5 * error for error in LOW])
    assert judged_rows(tmp_path, rows).outcome == HOLDS
    half = judged_rows(tmp_path, rows, times=0.5)
    assert half.outcome == FAILS
    assert half.numbers.startswith("B=64: 0.15 against 0.225, ")


def test_a_gap_grows_if_it_is_larger_at_the_smallest_budget(tmp_path):
    small = rows_of("h2o", LOW, 64) + rows_of("tova", (0.5, 0.7, 0.5, 0.8, 0.6), 64)
    large = rows_of("h2o", LOW, 256) + rows_of("tova", HIGH, 256)
    assert judged_rows(tmp_path, small + large, gap="grows").outcome == HOLDS
    swapped = [dict(row, budget_tokens=320 - row["budget_tokens"]) for row in small + large]
    assert judged_rows(tmp_path, swapped, gap="grows").outcome == FAILS
    assert judged_rows(tmp_path, small, gap="grows").outcome == UNDECIDED


def test_missing_and_failed_rows_are_said_and_decide_nothing(tmp_path):
    rows = rows_of("h2o", LOW) + [failed_row(method="tova", layer=i) for i in LAYERS]
    verdict = judged_rows(tmp_path, rows)
    assert (verdict.outcome, verdict.numbers) == (UNDECIDED, "none of the budgets has results of both")


def test_rows_are_selected_by_resolved_parameters_and_by_the_name_of_a_composed_one(tmp_path):
    int4 = {"row_format": {"name": "int4", "group": 64}}
    rows = [fake_row("h2o", {"row_format": "source"}), fake_row("h2o", int4, kv_head=1)]
    frame = load(write_results(tmp_path, rows))
    assert list(select(frame, {"method": "h2o", "row_format": "int4"})["kv_head"]) == [1]
    assert list(select(frame, {"method": "h2o", "row_format": "source"})["kv_head"]) == [0]
    assert select(frame, {"method": "h2o", "variant": "alg1"}).empty


@pytest.mark.parametrize(
    ("item", "says"),
    [({"claim": "a", "lower": {}}, "higher is missing"), ({"klaim": "a"}, "unknown key klaim")],
)
def test_a_malformed_claim_is_refused_by_name(tmp_path, item, says):
    with pytest.raises(FigureError, match=says):
        read_claims(make_context(tmp_path, options={"claims": [item]}))


def test_budget_claims_draws_the_curves_and_judges(tmp_path):
    options = {"claims": [{"claim": "a", "lower": {"method": "h2o"}, "higher": {"method": "tova"}}]}
    plot = draw(tmp_path, "budget_claims", rows_of("h2o", LOW) + rows_of("tova", HIGH), options)
    assert plot.outcomes() == [HOLDS]
    assert plot.verdicts[0].source == "a paper"
    said = "rel_err_out_mean: a mean of ratios over query heads and rows. "
    assert plot.figures[0].caption == said + BAND_NOTE


def test_time_averages_stand_beside_peaks_where_a_size_swings(tmp_path):
    rows = rows_of("buzz", LOW, mean_kept_tokens=40) + rows_of("h2o", HIGH, mean_kept_tokens=64)
    plot = draw(tmp_path, "budget_claims", rows)
    assert plot.figures[0].caption.endswith("Time averages of tokens: buzz B=64: 40 (peak 64).")


def test_points_are_means_over_heads_of_seed_means(tmp_path):
    # Seed means 0.15, 0.25, 0.35, 0.45, 0.55: mean 0.35, and 2.776 times sqrt(0.025 / 5) on either side.
    rows = [fake_row(layer=i, seed=s, rel_err=0.1 + i / 10 + s / 10) for i in range(5) for s in (0, 1)]
    points = head_points(load(write_results(tmp_path, rows)), "rel_err_out_mean", ["label", "budget_tokens"])
    assert points[["label", "budget_tokens", "n_units"]].values.tolist() == [["h2o", 64, 5]]
    assert points[["y", "low", "high"]].values[0].tolist() == pytest.approx([0.35, 0.1537, 0.5463], abs=1e-4)


def test_a_sheet_shows_its_points_and_clips_no_band():
    points = pd.DataFrame(
        [
            ("one", "a", 1, 0.2, 0.1, 0.3),
            ("one", "a", 2, 0.2, 0.1, 0.3),
            ("two", "a", 1, 0.5, 0.1, 0.9),
            ("two", "a", 2, 0.5, 0.1, 0.9),
        ],
        columns=["panel", "label", "x", "y", "low", "high"],
    )
    sheet = Sheet("t", points, Axis("x"), Axis("y", levels={"line": 0.7}), "note", levels_in=("two",))
    picture = curves_picture(sheet)
    assert picture.table is points
    for _, width in picture.widths:
        with styled():
            first, second = picture.draw(width).axes
        assert first.get_ylim() == second.get_ylim()
        assert second.get_ylim()[0] == 0
        assert second.get_ylim()[1] >= 0.9
        assert [len(axes.lines) for axes in (first, second)] == [1, 2]
