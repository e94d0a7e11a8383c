"""Claims of configurations: their rows and verdicts; sheets of curves."""

import numpy as np
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
from kvanalysis.stats.verdict import FAILS, HOLDS, MIXED, UNDECIDED, UNTESTABLE
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


def test_most_budgets_decide_unless_one_contradicts(tmp_path):
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


def test_missing_and_failed_rows_are_reported_and_decide_nothing(tmp_path):
    rows = rows_of("h2o", LOW) + [failed_row(method="tova", layer=i) for i in LAYERS]
    verdict = judged_rows(tmp_path, rows)
    assert (verdict.outcome, verdict.numbers) == (UNDECIDED, "none of the budgets has results for both")


def test_rows_are_selected_by_resolved_parameters_and_by_the_name_of_a_composed_one(tmp_path):
    int4 = {"row_format": {"name": "int4", "group": 64}}
    rows = [fake_row("h2o", {"row_format": "source"}), fake_row("h2o", int4, kv_head=1)]
    frame = load(write_results(tmp_path, rows))
    assert list(select(frame, {"method": "h2o", "row_format": "int4"})["kv_head"]) == [1]
    assert list(select(frame, {"method": "h2o", "row_format": "source"})["kv_head"]) == [0]
    assert select(frame, {"method": "h2o", "variant": "alg1"}).empty


INT4 = {"name": "int4", "group": 64}
KEYS_INT4 = {"key": INT4, "value": "source"}
FORMATS = [
    INT4,
    INT4 | {"rotate": "hadamard"},
    INT4 | {"full_precision": {"sinks": 4, "recent": 1}},
    INT4 | {"group": 32},
    KEYS_INT4,
    {"key": INT4 | {"rotate": "hadamard"}, "value": {"name": "int2", "group": 64, "rotate": "hadamard"}},
    {"name": "kvquant", "bits": 3, "calibrate_from": 4, "outliers": 1},
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("int4", 0),
        ({"name": "int4", "rotate": "none"}, 0),
        ({"key": "int4", "value": "int4"}, 0),
        ({"name": "int4", "rotate": "hadamard"}, 1),
        ({"name": "int4", "full_precision": {"sinks": 4}}, 2),
        ({"name": "int4", "group": 32}, 3),
        ({"key": "int4"}, 4),
        ({"key": "int4", "value": "int2", "rotate": "hadamard"}, 5),
        ({"name": "kvquant", "bits": 3, "keys": "pre_rope"}, 6),
        ({"value": "int4"}, None),
        ("kvquant", None),
    ],
)
def test_a_row_format_selects_itself_alone_with_or_without_its_defaults(tmp_path, wanted, found):
    rows = [fake_row("exact", {"row_format": each}, "", kv_head=i) for i, each in enumerate(FORMATS)]
    frame = load(write_results(tmp_path, rows))
    heads = list(select(frame, {"method": "exact", "row_format": wanted})["kv_head"])
    assert heads == ([] if found is None else [found])


def formats(low, high):
    """Rows of a full cache as int4 and as int8."""
    coded = (("int4", low), ("int8", high))
    return [
        row
        for name, errors in coded
        for row in rows_of("exact", errors, "", params={"row_format": {"name": name, "group": 64}})
    ]


SIDES = {name: {"method": "exact", "row_format": f} for name, f in (("lower", "int4"), ("higher", "int8"))}


def test_methods_without_a_budget_are_decided_once(tmp_path):
    verdict = judged_rows(tmp_path, formats(LOW, HIGH), **SIDES)
    assert verdict.outcome == HOLDS
    assert verdict.numbers.startswith("0.15 against 0.4, [")
    assert verdict.how.startswith("paired 95% interval over layers of error(exact int4) - error(exact int8),")
    assert "budgets" not in verdict.how
    assert judged_rows(tmp_path / "4", formats(LOW[:4], HIGH[:4]), **SIDES).outcome == UNDECIDED
    budgeted = rows_of("h2o", LOW) + formats(LOW, HIGH)
    assert judged_rows(tmp_path / "b", budgeted, higher=SIDES["higher"]).outcome == UNDECIDED


@pytest.mark.parametrize(
    ("low", "outcome"),
    [
        (LOW, HOLDS),
        ((0.5, *LOW[1:]), MIXED),
        ([2 * error for error in HIGH], FAILS),
        (LOW[:4], UNDECIDED),
    ],
)
def test_a_claim_on_every_layer_counts_layers(tmp_path, low, outcome):
    verdict = judged_rows(tmp_path, formats(low, HIGH), **SIDES, every="layer")
    assert verdict.outcome == outcome
    less = int(np.less(low, HIGH[: len(low)]).sum())
    assert verdict.numbers.startswith(f"less in {less} of {len(low)} layers; layer 0: {low[0]:.3g} against")


def test_the_layers_nearest_to_a_contradiction_are_named(tmp_path):
    low = [0.1, 0.1, 0.2, 0.1, 0.3, 0.1, 0.1]
    numbers = judged_rows(tmp_path, formats(low, [0.4] * 7), **SIDES, every="layer").numbers
    assert numbers.startswith(
        "less in 7 of 7 layers; nearest to contradicting it: layer 0: 0.1 against 0.4, "
    )
    assert "layer 4: 0.3 against 0.4" in numbers
    assert "layer 6" not in numbers


def test_one_bad_layer_refutes_every_layer_and_not_the_mean(tmp_path):
    rows = formats((0.31, *LOW[1:]), HIGH)
    assert judged_rows(tmp_path, rows, **SIDES).outcome == HOLDS
    assert judged_rows(tmp_path, rows, **SIDES, every="layer").outcome == MIXED


def test_heads_of_a_layer_count_as_one_and_texts_separately(tmp_path):
    def rows(name, error):
        return [
            fake_row("exact", {"row_format": name}, "", layer=layer, kv_head=head, prompt=text, rel_err=error)
            for layer in range(2)
            for head in range(3)
            for text in ("a", "b", "c")
        ]

    verdict = judged_rows(tmp_path, rows("int4", 0.1) + rows("int8", 0.2), **SIDES, every="layer")
    assert (verdict.outcome, verdict.numbers[:19]) == (HOLDS, "less in 6 of 6 laye")


@pytest.mark.parametrize(("line", "outcome"), [(0.3, HOLDS), (0.15, UNDECIDED), (0.05, FAILS)])
def test_a_claim_about_a_number_is_decided_by_the_interval_of_the_error(tmp_path, line, outcome):
    verdict = judged_rows(tmp_path, formats(LOW, HIGH), lower=SIDES["lower"], below=line)
    assert verdict.outcome == outcome
    # Mean 0.15, plus or minus 2.776 sqrt(0.0025 / 5).
    below = sum(error < line for error in LOW)
    assert verdict.numbers == f"0.15, [+0.088, +0.21], {below} of 5 heads below {line:g}"


def test_a_claim_that_errors_cannot_test_gives_the_reason(tmp_path):
    rows = load(write_results(tmp_path, formats(LOW, HIGH)))
    verdict = judged(Claim("a", "b", untestable="needs the model", shown=SIDES["lower"]), rows)
    assert (verdict.outcome, verdict.how) == (UNTESTABLE, "needs the model")
    assert verdict.numbers.startswith("error(exact int4): layer 0: 0.1, layer 1: 0.2, ")


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"claim": "a", "lower": {}}, "higher is missing"),
        ({"klaim": "a"}, "unknown key klaim"),
        ({"claim": "a", "untestable": "why"}, "shown is missing"),
        ({"claim": "a", "untestable": "why", "shown": {}, "lower": {}}, "unknown key lower"),
        ({"claim": "a", "below": 0.1}, "lower is missing"),
    ],
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


def test_time_averages_are_drawn_next_to_peaks_if_sizes_vary(tmp_path):
    rows = rows_of("buzz", LOW, mean_kept_tokens=40) + rows_of("h2o", HIGH, mean_kept_tokens=64)
    plot = draw(tmp_path, "budget_claims", rows)
    assert plot.figures[0].caption.endswith("Time averages of tokens: buzz B=64: 40 (peak 64).")


def test_points_are_means_over_heads_of_seed_means(tmp_path):
    # Seed means 0.15, 0.25, 0.35, 0.45, 0.55: mean 0.35, plus or minus 2.776 sqrt(0.025 / 5).
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
