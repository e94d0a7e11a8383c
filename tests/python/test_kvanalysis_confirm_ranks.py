"""The measure that predicts the loss best: rank correlations by hand, resampled methods, planted winners."""

import numpy as np
import pytest
from fake_confirm import confirm_rows, planted, read, six_methods, write_confirm
from kvanalysis.predict import exceptions as confirm_exceptions
from kvanalysis.predict.best import (
    best_choice,
    held_out,
    layer_correlations,
    main_choice,
    measure_words,
    shown_choices,
)
from kvanalysis.predict.correlations import correlations, scope_correlations, scopes
from kvanalysis.predict.exceptions import (
    count_significant_pairs,
    exceptional_labels,
    exceptions,
    residuals,
    standard_error,
    wide_pairs,
)
from kvanalysis.predict.measures import WEIGHTINGS, weighted
from kvanalysis.stats.fits import isotonic
from kvanalysis.stats.ranks import (
    FEWEST_METHODS,
    Draws,
    drawn_spearmans,
    kendalls,
    method_draws,
    percentile_intervals,
    spearmans,
)
from test_kvanalysis_fake import fake_row, write_results

# Rank correlations


def spearman(x, y):
    return float(spearmans([x], [y])[0, 0])


def kendall(x, y):
    return float(kendalls([x], [y])[0, 0])


@pytest.mark.parametrize(
    ("x", "y", "rho", "tau"),
    [
        ([1, 2, 3], [10, 20, 400], 1, 1),
        ([1, 2, 3], [3, 2, 1], -1, -1),
        # Two neighbours swapped twice: 1 - 6 * 4 / (5 * 24); 8 pairs in order, 2 not, of 10.
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8, 0.6),
        # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: 4.5 / sqrt(4.5 * 5); 5 pairs in order, x ties one of 6.
        ([1, 2, 2, 3], [1, 3, 2, 4], 4.5 / np.sqrt(22.5), 5 / np.sqrt(30)),
        # Ties in both: ranks 1.5, 1.5, 3.5, 3.5 and 1, 2.5, 2.5, 4; of 6 pairs x ties 2, y 1.
        ([1, 1, 2, 2], [1, 2, 2, 3], 3 / np.sqrt(4 * 4.5), 3 / np.sqrt(4 * 5)),
        ([-0.02, 0, 0.5], [-1, 3, 4], 1, 1),  # a loss below zero has a rank like any other
    ],
)
def test_rank_correlations_are_those_worked_out_by_hand(x, y, rho, tau):
    assert spearman(x, y) == pytest.approx(rho)
    assert spearman(y, x) == pytest.approx(rho)
    assert kendall(x, y) == pytest.approx(tau)


def test_a_constant_has_no_rank_correlation():
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3])) and np.isnan(kendall([1, 2, 3], [5, 5, 5]))


def test_many_correlations_are_those_of_each_pair():
    random = np.random.default_rng(3)
    xs, ys = random.integers(0, 6, (4, 9)), random.integers(0, 6, (3, 9))
    for i, j in np.ndindex(4, 3):
        assert spearmans(xs, ys)[i, j] == pytest.approx(spearman(xs[i], ys[j]))
        assert kendalls(xs, ys)[i, j] == pytest.approx(kendall(xs[i], ys[j]))


def test_a_resamples_correlation_equals_that_of_its_repeated_points(monkeypatch):
    monkeypatch.setattr("kvanalysis.stats.ranks.BLOCK_VALUES", 100)  # several blocks
    random = np.random.default_rng(1)
    x, y = random.integers(0, 5, 12), random.normal(size=12)
    draws = Draws(random.integers(0, 3, (40, 4)).astype(float), np.repeat(np.arange(4), 3))
    found = drawn_spearmans([x, y], [y], draws)
    for r, counts in enumerate(draws.counts):
        points = np.repeat(np.arange(12), counts[draws.group].astype(int))
        assert found[0, 0, r] == pytest.approx(spearman(x[points], y[points]), nan_ok=True)
    assert found.shape == (2, 1, 40)


# Resampled methods


def test_a_method_is_drawn_with_all_its_instances_or_not_at_all():
    methods = np.array(["a", "b", "c", "d", "e", "a", "a", "b"])
    draws = method_draws(methods, resamples=50)
    weights = draws.counts[:, draws.group]
    assert (weights[:, 0] == weights[:, 5]).all() and (weights[:, 0] == weights[:, 6]).all()
    assert (weights[:, 1] == weights[:, 7]).all()
    assert (draws.counts.sum(axis=1) == 5).all() and (draws.counts == 0).any()


def test_draws_repeat_and_depend_on_the_seed():
    methods = [f"m{i}" for i in range(6)]
    first, again, other = (method_draws(methods, 20, seed).counts for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()


def test_few_methods_have_no_interval():
    assert method_draws(["a"] * 20 + [f"m{i}" for i in range(FEWEST_METHODS - 2)]) is None
    assert np.isnan(percentile_intervals(np.full((1, 4), np.nan))).all()


def test_resamples_without_a_correlation_do_not_count():
    low, high = percentile_intervals(np.array([[0.5, np.nan, 0.5]]))
    assert (low[0], high[0]) == (0.5, 0.5)


# Layers


def test_weightings_are_means_of_the_layers_they_name():
    layers = np.array([[1.0, 2, 3, 4, 5, 6], [0, 1, 1, 1, 1, 1]])
    found = {name: weighted(layers, name) for name in WEIGHTINGS}
    assert found["mean"] == pytest.approx([3.5, 5 / 6])
    assert found["first third"] == pytest.approx([1.5, 0.5])
    assert found["middle third"] == pytest.approx([3.5, 1])
    assert found["last third"] == pytest.approx([5.5, 1])
    assert found["geometric mean"] == pytest.approx([720 ** (1 / 6), 0])
    assert found["root mean square"] == pytest.approx([np.sqrt(91 / 6), np.sqrt(5 / 6)])
    assert found["largest"] == pytest.approx([6, 1])


def test_a_layer_without_a_value_leaves_no_mean_and_two_layers_have_no_thirds():
    assert np.isnan(weighted(np.array([[1.0, np.nan, 3]]), "mean")).all()
    assert np.isnan(weighted(np.array([[1.0, 2.0]]), "first third")).all()


def test_the_curve_over_layers_is_each_layer_s_correlation(tmp_path):
    def layers(number, place):
        loss = (1 + number) * (2 - place)
        return {"rel_err_out_mean": [0.1 * loss, 1 - 0.01 * loss, 0.3]}

    table = layer_correlations(read(planted(tmp_path, six_methods(other=layers))), ["rel_err_out_mean"])
    assert dict(zip(table["layer"], table["spearman"], strict=True)) == pytest.approx({0: 1, 1: -1})
    assert (table["spearman_low"] <= table["spearman"]).all()


# Which measure predicts


def noise(number, place):
    """Cosines that are independent of the loss."""
    return {
        "cosine_mean": [0.9, 0.5, 0.8, 0.85, 0.4, 0.75, 0.95, 0.3, 0.6, 0.7, 0.2, 0.65][2 * number + place]
    }


def of(table, measure, weighting="mean", scope="all", prompt="", target="loss_increase"):
    rows = table[(table["measure"] == measure) & (table["weighting"] == weighting)]
    rows = rows[(rows["scope"] == scope) & (rows["prompt"] == prompt) & (rows["target"] == target)]
    [row] = rows.to_dict("records")
    return row


def test_a_predictive_measure_ranks_first_with_a_separate_interval(tmp_path):
    found = read(planted(tmp_path, six_methods(other=noise), prompts=("p0", "p1")))
    table = correlations(found)
    first = table[(table["scope"] == "all") & (table["target"] == "loss_increase")].iloc[0]
    assert (first["measure"], first["spearman"], first["kendall"]) == ("rel_err_out_mean", 1, 1)
    good, bad = of(table, "rel_err_out_mean"), of(table, "cosine_distance")
    assert bad["spearman_high"] < good["spearman_low"] == pytest.approx(1)
    assert abs(bad["spearman"]) < 0.5
    assert (good["n_texts"], good["n_instances"], good["n_methods"]) == (2, 24, 6)
    assert best_choice(found).measure == "rel_err_out_mean"


def test_the_gain_is_paired_with_the_main_measure_and_only_on_its_instances(tmp_path):
    def other(number, place):
        return noise(number, place) | ({"rel_err_prefix_mean": 0.1 * (1 + number)} if number < 4 else {})

    table = correlations(read(planted(tmp_path, six_methods(other=other))))
    main, bad, fewer = (
        of(table, name) for name in ("rel_err_out_mean", "cosine_distance", "rel_err_prefix_mean")
    )
    assert (main["gain"], main["gain_low"], main["gain_high"]) == (0, 0, 0)
    assert bad["gain"] == pytest.approx(bad["spearman"] - 1) and bad["gain_high"] < 0
    assert np.isnan(fewer["gain"]) and fewer["n_instances"] == 8 and np.isnan(fewer["first_share"])


def test_shares_of_first_places_sum_to_one_over_eligible_measures(tmp_path):
    def other(number, place):
        return noise(number, place) | {"drift_mean": 0.1 * (1 + number) * (2 - place)}

    table = correlations(read(planted(tmp_path, six_methods(lambda loss: loss**2, other=other))))
    whole = table[(table["scope"] == "all") & (table["target"] == "loss_increase") & (table["prompt"] == "")]
    assert whole["first_share"].sum() == pytest.approx(1)
    # Measures of the compressed run are no prediction, however well they agree.
    assert whole[whole["measure"] == "drift_mean"]["first_share"].isna().all()
    assert best_choice(read(tmp_path)).measure == "rel_err_out_mean"


def test_the_same_folder_gives_the_same_table_each_time(tmp_path):
    planted(tmp_path, six_methods(other=noise))
    first, again = (correlations(read(tmp_path)) for _ in range(2))
    assert first.equals(again)


def test_texts_are_averaged_and_never_pooled(tmp_path):
    rows, losses = [], []
    for prompt, factor in (("p0", 1), ("p1", 0.001)):
        for (method, budget), (loss, values) in six_methods().items():
            error = values["rel_err_out_mean"] / factor  # a pooled correlation would be far from 1
            rows.append(fake_row(method, budget=budget, seed="", prompt=prompt, rel_err=error, given={}))
            losses += confirm_rows(method, budget, loss * factor, prompt, layers="0")
    write_results(tmp_path, rows)
    table = correlations(read(write_confirm(tmp_path, losses)))
    for prompt in ("", "p0", "p1"):
        assert of(table, "rel_err_out_mean", prompt=prompt)["spearman"] == 1


def test_a_text_with_few_instances_is_left_out_of_the_mean(tmp_path):
    cells = six_methods()
    folder = planted(tmp_path, cells, prompts=("p0", "p1"))
    kept = [
        row for (method, budget), (loss, _) in cells.items() for row in confirm_rows(method, budget, loss)
    ]
    few = [row for loss in (0.3, 0.1) for row in confirm_rows("h2o", 64 if loss == 0.3 else 128, loss, "p1")]
    table = correlations(read(write_confirm(folder, kept + few)))
    assert of(table, "rel_err_out_mean")["n_texts"] == 1
    assert "p1" not in set(table["prompt"])


def test_at_equal_budgets_ranks_are_compared_within_a_budget(tmp_path):
    # Across budgets the error grows with the loss; within a budget it falls.
    cells = {
        (method, budget): (place + 0.1 * number, {"rel_err_out_mean": place + 0.1 * (5 - number)})
        for number, method in enumerate(("a", "b", "c", "d", "e", "f"))
        for place, budget in ((1, 128), (10, 64))
    }
    table = correlations(read(planted(tmp_path, cells)))
    assert of(table, "rel_err_out_mean", scope="equal budgets")["spearman"] == pytest.approx(-1)
    assert of(table, "rel_err_out_mean", scope="B = 64")["spearman"] == pytest.approx(-1)
    assert of(table, "rel_err_out_mean")["spearman"] > 0.4


def test_every_target_and_every_part_of_the_rows_has_its_correlations(tmp_path):
    table = correlations(read(planted(tmp_path, six_methods(other=noise))))
    for target in ("loss_increase", "kl_mean", "top1_lost"):
        assert of(table, "rel_err_out_mean", target=target)["spearman"] == 1
    assert of(table, "rel_err_out_mean", scope="rows 0–15")["spearman"] == 1
    assert set(table.loc[table["target"] != "loss_increase", "scope"]) == {"all"}


def test_each_text_is_predicted_by_the_best_measure_on_the_others(tmp_path):
    rows, losses = [], []
    for prompt in ("p0", "p1"):
        for number, ((method, budget), (loss, _)) in enumerate(six_methods().items()):
            good, bad = loss, 0.1 + 0.01 * ((7 * number) % 12)
            values = (good, bad) if prompt == "p0" else (bad, good)
            rows.append(fake_row(method, budget=budget, seed="", prompt=prompt, rel_err=values[0],
                                 rel_err_fro=values[1], given={}))  # fmt: skip
            losses += confirm_rows(method, budget, loss, prompt, layers="0")
    write_results(tmp_path, rows)
    found = read(write_confirm(tmp_path, losses))
    told = held_out(scope_correlations(found, scopes(found)[0], resampled=False))
    assert [(prompt, measure) for prompt, (measure, _), _, _ in told] == [
        ("p0", "rel_err_fro"), ("p1", "rel_err_out_mean"),
    ]  # fmt: skip
    assert all(rho < 0.5 for _, _, rho, _ in told)
    assert told[0][3] == 1


def test_with_too_few_methods_nothing_is_best(tmp_path):
    found = read(planted(tmp_path, {("h2o", 64): (0.1, {}), ("tova", 64): (0.2, {})}))
    assert best_choice(found) is None and shown_choices(found) == []


def test_a_run_of_only_oracles_has_no_best_measure(tmp_path):
    found = read(planted(tmp_path, {("static_oracle", b): (0.1 / b, {}) for b in (8, 16, 32, 64, 128, 256)}))
    assert best_choice(found) is None


def test_where_the_main_measure_is_best_it_is_shown_once(tmp_path):
    assert [each.is_main for each in shown_choices(read(planted(tmp_path, six_methods())))] == [True]


def test_the_best_measure_from_traces_needs_no_model(tmp_path):
    def other(number, place):
        return {"rel_err_resid_mean": 0.1 * (1 + number) * (2 - place)}

    found = read(planted(tmp_path, six_methods(lambda loss: 1 + (loss > 0.3) + loss % 0.07, other=other)))
    assert best_choice(found).measure == "rel_err_resid_mean"
    assert best_choice(found, from_traces=True).measure == "rel_err_out_mean"


def test_a_measure_is_named_with_its_layers():
    assert measure_words("rel_err_out_mean", "mean") == "mean relative error, mean over layers"
    assert measure_words("missing_mass", "last third") == "missing mass, last third of layers"


# Exceptions


def test_the_monotone_fit_pools_misordered_neighbours():
    assert isotonic([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx([1, 2.5, 2.5, 4])
    assert isotonic([3, 1, 2], [0, 9, 3]) == pytest.approx([4, 4, 4])
    assert isotonic([1, 1, 2], [0, 4, 3]) == pytest.approx([2, 2, 3])


def found_pairs(folder, cells, prompts=("p0",)):
    found = read(planted(folder, cells, prompts))
    return found, exceptions(found, main_choice(found).values)


def test_a_monotone_measure_has_no_exceptions(tmp_path):
    found, pairs = found_pairs(tmp_path, six_methods(lambda loss: loss**3))
    assert pairs.empty
    assert residuals(found, main_choice(found).values) == pytest.approx(np.zeros(12))


def test_a_pair_that_the_loss_orders_the_other_way_is_found_with_its_numbers(tmp_path):
    cells = six_methods(budgets=(64,)) | {("streaming_llm", 64): (0.06, {"rel_err_out_mean": 0.32})}
    _, pairs = found_pairs(tmp_path, cells)
    # The error 0.3 of window is too close. adakv has the lower loss 0.05 and a lower error: no exception.
    assert list(pairs["less_error"]) == ["snapkv", "knorm", "h2o"]
    assert set(pairs["less_loss"]) == {"streaming_llm"}
    first = pairs.iloc[0]
    assert first["error_ratio"] == pytest.approx(0.32 / 0.2)
    assert first["loss_difference"] == pytest.approx(0.2 - 0.06)
    # The fit pools tova, window and streaming_llm: (0.25 + 0.3 + 0.06) / 3.
    assert first["residual_of_less_loss"] == pytest.approx(0.06 - 0.61 / 3)
    assert first["residual_of_less_error"] == pytest.approx(0)
    sides = {(row.label, row.side): row.pairs for row in exceptional_labels(pairs).itertuples()}
    assert sides == {
        ("streaming_llm", "less"): 3,
        ("snapkv", "more"): 1,
        ("knorm", "more"): 1,
        ("h2o", "more"): 1,
    }


def test_a_narrow_margin_or_another_budget_makes_no_exception(tmp_path):
    cells = {
        ("h2o", 64): (0.5, {"rel_err_out_mean": 0.2}),
        ("tova", 64): (0.3, {"rel_err_out_mean": 0.29}),
        ("tova", 128): (0.1, {"rel_err_out_mean": 0.9}),
    }
    assert found_pairs(tmp_path, cells)[1].empty


def test_oracles_make_no_exceptions(tmp_path):
    cells = {
        ("h2o", 64): (0.5, {"rel_err_out_mean": 0.2}),
        ("static_oracle", 64): (0.1, {"rel_err_out_mean": 0.9}),
    }
    assert found_pairs(tmp_path, cells)[1].empty


@pytest.mark.parametrize(
    ("difference", "kl", "counts"), [(0.01, 0, 0), (0.03, 0, 1), (0.3, 2.0, 0), (0.3, 0.5, 1)]
)
def test_a_difference_within_its_noise_makes_no_exception(tmp_path, difference, kl, counts):
    planted(
        tmp_path, {("h2o", 64): (0, {"rel_err_out_mean": 0.1}), ("tova", 64): (0, {"rel_err_out_mean": 0.9})}
    )
    losses = [row | {"kl_mean": kl} for method, loss in (("h2o", difference), ("tova", 0))
              for row in confirm_rows(method, loss=loss)]  # fmt: skip
    found = read(write_confirm(tmp_path, losses))
    values = main_choice(found).values
    assert len(exceptions(found, values)) == counts
    assert (
        len(wide_pairs(found, values)) == 1 and count_significant_pairs(wide_pairs(found, values)) == counts
    )


@pytest.mark.parametrize(("sd", "counts"), [(0, 1), (0.2, 1), (0.4, 0)])
def test_noise_of_draws_is_added_to_the_standard_error_of_a_pair(tmp_path, sd, counts):
    planted(
        tmp_path, {("h2o", 64): (0, {"rel_err_out_mean": 0.1}), ("tova", 64): (0, {"rel_err_out_mean": 0.9})}
    )
    several = {"n_draws": 4, "loss_increase_sd": sd, "kl_mean": 0}
    losses = [row | several for method, loss in (("h2o", 0.5), ("tova", 0)) for row in
              confirm_rows(method, loss=loss)]  # fmt: skip
    found = read(write_confirm(tmp_path, losses))
    pairs = wide_pairs(found, main_choice(found).values)
    # Each mean has sd / 2. A difference of 0.5 counts up to a standard error of 0.25.
    assert pairs["standard_error"][0] == pytest.approx(sd / 2**0.5)
    assert count_significant_pairs(pairs) == len(exceptions(found, main_choice(found).values)) == counts


def test_the_standard_error_of_a_loss_is_that_of_a_mean_of_log_ratios():
    # Bernoulli(0.5) against Bernoulli(0.6): spread of the log ratios, compared with the root of 2 KL.
    p, q = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    ratios = np.log(p / q)
    kl = (p * ratios).sum()
    spread = np.sqrt((p * (ratios - kl) ** 2).sum())
    assert standard_error(kl, 100) == pytest.approx(spread / 10, rel=0.02)
    assert standard_error(-1e-9, 100) == 0


def test_pairs_are_counted_once_for_each_text(tmp_path):
    cells = {("h2o", 64): (0.5, {"rel_err_out_mean": 0.2}), ("tova", 64): (0.1, {"rel_err_out_mean": 0.9})}
    found, pairs = found_pairs(tmp_path, cells, prompts=("p0", "p1"))
    assert list(pairs["prompt"]) == ["p0", "p1"]
    assert list(exceptional_labels(pairs)["texts"]) == [2, 2]
    assert list(pairs) == confirm_exceptions.COLUMNS
    assert len(found.table) == 4
