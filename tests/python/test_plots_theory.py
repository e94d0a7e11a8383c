"""Power laws, memory against length, promised epsilons and bounds, with numbers checked by hand."""

import json

import numpy as np
import pytest
from fake_figure import fake_context, sketch
from kvanalysis.data.load import load
from kvanalysis.errors import FigureError, ResultsError
from kvanalysis.stats.fits import fit, slope
from kvanalysis.stats.verdict import FAILS, HOLDS, UNDECIDED
from test_kvanalysis_fake import failed_row, fake_row, write_results


def test_the_exponent_of_a_power_law_is_found_exactly():
    assert fit([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert fit([1, 2, 4], 5 * np.array([1, 2, 4]) ** -1.5) == pytest.approx(-1.5)
    assert fit([1, 2, 4], [5, 5, 5]) == 0
    assert fit([1, 2, 4], [1, 0, 16]) == pytest.approx(2)  # zero has no logarithm
    # ln y = 0, 1, 0 over ln x = 0, 1, 2: no trend.
    assert fit(np.exp([0, 1, 2]), np.exp([0, 1, 0])) == pytest.approx(0)
    assert np.isnan(fit([2, 2], [1, 3]))


def test_slopes_are_fitted_for_every_head_after_seeds_are_averaged(tmp_path):
    rows = [
        fake_row(layer=i, budget=b, seed=s, total_bytes=b**p * (1 + 0.5 * (2 * s - 1)))
        for i, p in enumerate((1, 1.5, 2, 2.5, 3))
        for b in (64, 128)
        for s in (0, 1)
    ]
    frame = load(write_results(tmp_path, rows))
    found = slope(frame.assign(budget=frame["budget_tokens"].astype(float)), "budget", "total_bytes")
    reach = 2.776445 * np.sqrt(0.625 / 5)  # half width for five exponents with variance 0.625
    assert (found.value, found.low, found.high, found.n_units) == pytest.approx((2, 2 - reach, 2 + reach, 5))
    assert slope(frame, "budget_tokens", "rel_err_fro") is None


# ---- memory against length


def lengths(method, sizes, **changes):
    """{step: rows} with five layers; `sizes`: {n: tokens held}."""
    return {
        f"n{n}": [
            fake_row(
                method,
                layer=layer,
                n_tokens=n,
                n_prefill=n - 1,
                peak_kept_tokens=held,
                total_bytes=256 * held,
                **changes,
            )
            for layer in range(5)
        ]
        for n, held in sizes.items()
    }


def outcomes(plot):
    return {verdict.claim: verdict.outcome for verdict in plot.verdicts}


@pytest.mark.parametrize(
    ("method", "sizes", "exponent", "outcome"),
    [
        ("h2o", {128: 64, 256: 64, 512: 64}, 0, HOLDS),
        ("h2o", {128: 64, 256: 128, 512: 256}, 1, FAILS),
        ("exact", {128: 128, 256: 256, 512: 512}, 1, HOLDS),
        # Powers of four below the length: 64, 64, 256 with square roots 8, 8, 16.
        ("kernel_halving", {128: 8, 256: 8, 512: 16}, 0.5, HOLDS),
    ],
)
def test_the_growth_of_memory_is_fitted_and_judged_by_theory(tmp_path, method, sizes, exponent, outcome):
    plot = sketch(fake_context(tmp_path, "memory_vs_n", lengths(method, sizes)))
    table = plot.table()
    tokens = table[table["measure"] == "peak_kept_tokens"]
    assert tokens["n"].tolist() == list(sizes)
    assert tokens["mean"].tolist() == list(sizes.values())
    assert tokens["exponent"].tolist() == pytest.approx([exponent] * len(sizes))
    assert list(outcomes(plot).values()) == [outcome]


def test_clusters_that_grow_with_the_text_are_no_sublinear_memory(tmp_path):
    def steps(clusters):
        made = lengths("subgen_stream", {128: 150, 256: 300}, params={"t": 1, "s": 16})
        for rows, m in zip(made.values(), clusters, strict=True):
            for row in rows:
                row["extras"] = json.dumps({"clusters": m})
        return made

    def verdict(folder, clusters):
        folder.mkdir()
        [last] = sketch(fake_context(folder, "memory_vs_n", steps(clusters))).verdicts
        assert "m(n)" in last.claim
        return last.outcome

    assert verdict(tmp_path / "linear", (70, 140)) == FAILS
    assert verdict(tmp_path / "root", (70, 99)) == HOLDS


def test_memory_against_length_needs_two_lengths(tmp_path):
    steps = {"a": [fake_row()], "b": [fake_row(), failed_row(kv_head=1)]}
    with pytest.raises(FigureError, match="two or more lengths"):
        sketch(fake_context(tmp_path, "memory_vs_n", steps))
    drawn = lengths("mystery", {128: 64, 256: 80}) | {"late": [fake_row("mystery"), failed_row(kv_head=1)]}
    assert (
        sketch(fake_context(tmp_path, "memory_vs_n", drawn), painted=True).verdicts == []
    )  # a method without a line for its theory


# ---- promised epsilons


def promised(method, errors, sizes, **changes):
    """Two or more rows for each of five layers; `errors` and `sizes` by epsilon."""
    side = {"subgen_stream": "eps_spectral", "balancekv_stream": "eps_frobenius"}[method]
    given = {"delta": 0.6} if method == "subgen_stream" else {"on_fail": "coin"}
    return [
        fake_row(
            method,
            given | {"epsilon": epsilon},
            "",
            layer=layer,
            total_bytes=sizes[epsilon],
            bound_log10_tokens=2,
            peak_attended_tokens=50,
            **{f"{side}_mean": error, f"{side}_max": 3 * error},
            **changes,
        )
        for layer in range(5)
        for epsilon, error in errors.items()
    ]


def test_the_price_of_an_epsilon_is_the_exponent_of_bytes(tmp_path):
    errors = {0.1: 0.05, 0.2: 0.1, 0.4: 0.2}
    rows = promised("subgen_stream", errors, {0.1: 16000, 0.2: 4000, 0.4: 1000})
    rows += promised("balancekv_stream", errors, {0.1: 4000, 0.2: 2000, 0.4: 1000})
    plot = sketch(
        fake_context(tmp_path, "epsilon_sweep", {"made": rows}, data={"made": "made keys"}), painted=True
    )
    table = plot.table()
    slopes = table.groupby("curve")[["bytes_slope", "error_slope", "bytes_by_error_slope", "capped"]].first()
    assert slopes.loc["subgen_stream delta=0.6"].tolist() == pytest.approx([-2, 1, -2, 1])
    assert slopes.loc["balancekv_stream on_fail=coin"].tolist() == pytest.approx([-1, 1, -1, 1])
    assert table["error"].tolist() == pytest.approx([0.05, 0.1, 0.2] * 2)
    assert set(outcomes(plot).values()) == {HOLDS}


def test_an_error_above_epsilon_and_a_flat_price_are_reported_as_such(tmp_path):
    rows = promised("subgen_stream", {0.1: 0.2, 0.2: 0.4}, {0.1: 4000, 0.2: 4000})
    plot = sketch(fake_context(tmp_path, "epsilon_sweep", {"made": rows}, data={"made": "made keys"}))
    assert list(outcomes(plot).values()) == [FAILS, FAILS]


def test_an_interval_that_only_reaches_into_the_range_decides_nothing(tmp_path):
    rows = promised("subgen_stream", {0.1: 0.1, 0.2: 0.2}, {0.1: 4000, 0.2: 1000})
    for row in rows[:2]:
        row["total_bytes"] = 2000  # one layer, which then has slope 0
    plot = sketch(fake_context(tmp_path, "epsilon_sweep", {"made": rows}, data={"made": "made keys"}))
    assert outcomes(plot)["made keys, subgen_stream delta=0.6: memory grows as error^-2"] == UNDECIDED


def test_an_error_whose_interval_includes_epsilon_is_undecided(tmp_path):
    rows = promised("subgen_stream", {0.1: 0.1, 0.2: 0.1}, {0.1: 4000, 0.2: 1000})
    rows[0]["eps_spectral_mean"] = 0.08  # one layer at epsilon 0.1; another one has 0.12
    rows[2]["eps_spectral_mean"] = 0.12
    plot = sketch(fake_context(tmp_path, "epsilon_sweep", {"made": rows}, data={"made": "made keys"}))
    assert (
        outcomes(plot)["made keys, subgen_stream delta=0.6: the mean error stays below epsilon"] == UNDECIDED
    )


def test_four_layers_have_no_interval_and_decide_nothing(tmp_path):
    rows = promised("subgen_stream", {0.1: 0.05, 0.2: 0.1}, {0.1: 4000, 0.2: 1000})[:8]
    plot = sketch(fake_context(tmp_path, "epsilon_sweep", {"made": rows}, data={"made": "made keys"}))
    assert set(outcomes(plot).values()) == {UNDECIDED}


def test_an_epsilon_sweep_of_one_epsilon_is_refused(tmp_path):
    rows = [*promised("subgen_stream", {0.1: 0.1}, {0.1: 10}), fake_row()]
    with pytest.raises(FigureError, match="step made: epsilon_sweep needs at least two values of epsilon"):
        sketch(fake_context(tmp_path, "epsilon_sweep", {"made": rows}, data={"made": "made keys"}))
    with pytest.raises(ResultsError, match="no such file"):
        sketch(fake_context(tmp_path, "epsilon_sweep", {"made": rows}, data={"other": "other keys"}))


# ---- bounds


def bound_rows(holds, capped=0):
    """Two heads with a measured epsilon of half and an eighth of the promised one."""
    return [
        fake_row(
            "subgen_stream",
            {"delta": 0.6, "epsilon": 0.4},
            "",
            kv_head=h,
            bound_epsilon=0.4,
            bound_slack=slack,
            bound_holds=share,
            bound_probability=0.99,
            bound_capped=capped,
            bound_log10_tokens=3,
            peak_attended_tokens=100,
        )
        for h, (slack, share) in enumerate(zip((2, 8), holds, strict=True))
    ]


def test_slack_is_a_geometric_mean_and_a_share_below_the_bound_is_a_violation(tmp_path):
    options = {"data": {"run": "made keys"}}
    plot = sketch(
        fake_context(tmp_path, "bound_tightness", {"run": bound_rows((1, 0.9))}, **options), painted=True
    )
    [row] = plot.table().to_dict("records")
    assert (row["slack"], row["share"], row["log10_asked"], row["log10_held"]) == pytest.approx(
        (4, 0.95, 3, 2)
    )
    assert (row["violated"], row["heads_violated"], row["n_heads"]) == (1, 1, 2)
    assert plot.outcomes() == [FAILS]


def test_a_bound_that_holds_at_capped_sizes_mentions_the_cap(tmp_path):
    plot = sketch(fake_context(tmp_path, "bound_tightness", {"run": bound_rows((1, 0.99), capped=1)}))
    [verdict] = plot.verdicts
    assert verdict.outcome == HOLDS
    assert "at sizes below the required ones" in verdict.claim
    assert verdict.source == "SubGen, Theorem 1"
    assert "is guaranteed" in verdict.numbers


def test_results_without_bounds_and_methods_without_bounds_give_different_messages(tmp_path):
    with pytest.raises(FigureError, match="the results lack bound_epsilon"):
        sketch(fake_context(tmp_path, "bound_tightness", {"run": [fake_row()]}))
    empty = dict.fromkeys(
        ("bound_epsilon", "bound_slack", "bound_holds", "bound_probability", "bound_capped"), ""
    )
    with pytest.raises(FigureError, match="no finished cell has a bound"):
        sketch(fake_context(tmp_path, "bound_tightness", {"run": [fake_row(**empty)]}))
