"""confirm.csv and confirm_layers.csv together with their results, and refusals."""

import json

import h5py
import numpy as np
import pytest
from fake_confirm import (
    FULL,
    ROWS,
    confirm_rows,
    failed_confirm,
    layer_rows,
    planted,
    read,
    six_methods,
    write_confirm,
)
from kvanalysis import ResultsError, load
from kvanalysis.data.confirm_csv import (
    draw_variance,
    drawn_once,
    layers_of,
    read_confirm_csv,
    read_confirm_layers_csv,
)
from kvanalysis.data.confirmed import confirmed
from kvanalysis.predict.correlations import ALL, scopes
from kvanalysis.predict.exceptions import by_selection, hidden, spread_over_texts
from kvanalysis.predict.instances import sink_holders
from test_kvanalysis_fake import fake_row, write_results


def results(folder, rows=None):
    rows = rows or [fake_row(layer=layer, seed="", given={}) for layer in range(3)]
    return write_results(folder, rows)


# Reading


def test_a_folder_without_confirm_csv_has_nothing_confirmed(tmp_path):
    assert read_confirm_csv(tmp_path / "confirm.csv") is None
    assert confirmed(load(results(tmp_path))) is None


def test_losses_are_numbers_and_an_empty_budget_is_missing(tmp_path):
    write_confirm(tmp_path, confirm_rows(budget="", loss=-0.25, seed=3))
    frame = read_confirm_csv(tmp_path / "confirm.csv")
    assert frame["budget_tokens"].isna().all() and list(frame["seed"]) == [3, 3, 3]
    assert frame["loss_increase"][0] == -0.25 and frame["distance_to"][0] == ROWS


def test_missing_columns_are_named_with_the_remedy(tmp_path):
    (tmp_path / "confirm.csv").write_text("key,trace_id\n1,2\n")
    with pytest.raises(
        ResultsError, match=r"confirm.csv: missing columns: model, .*`kvreplay confirm .*again"
    ):
        read_confirm_csv(tmp_path / "confirm.csv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_increase": ""}, "row 1 loss_increase is empty, but status is ok"),
        ({"loss_increase": "much"}, "row 1, column loss_increase: 'much' is not a finite number"),
        ({"n_rows": "1.5"}, "row 1, column n_rows: '1.5' is not a whole number"),
        ({"selection": "guessed"}, "row 1 selection is neither recorded nor own"),
        ({"layers": "all"}, "row 1: layers: 'all' is not a list of layers, as in 0-29 or 0,7,15"),
        ({"prompt": ""}, "row 1: prompt is empty"),
    ],
)
def test_a_row_that_is_wrong_is_named(tmp_path, changes, message):
    write_confirm(tmp_path, [confirm_rows()[0] | changes])
    with pytest.raises(ResultsError) as problem:
        read_confirm_csv(tmp_path / "confirm.csv")
    assert message in str(problem.value)


def test_a_repeated_instance_is_refused_even_with_another_key(tmp_path):
    again = [row | {"key": "of another model"} for row in confirm_rows()]
    write_confirm(tmp_path, [*confirm_rows(), *again])
    with pytest.raises(ResultsError, match="row 4 repeats a range of an instance; move the file away"):
        read_confirm_csv(tmp_path / "confirm.csv")


def test_a_repeated_layer_is_refused(tmp_path):
    rows = layer_rows(confirm_rows(), [{"drift_mean": 0.1}])
    write_confirm(tmp_path, confirm_rows(), rows + rows)
    with pytest.raises(ResultsError, match="row 2 repeats a layer of an instance"):
        read_confirm_layers_csv(tmp_path / "confirm_layers.csv")


def test_layers_are_written_as_kvconfirm_writes_them():
    assert layers_of("0-2,7,9-10") == [0, 1, 2, 7, 9, 10]
    for text in ("", "all", "3-", "1,,2", "-1"):
        with pytest.raises(ValueError, match="not a list of layers"):
            layers_of(text)


# Joining


def test_rows_of_another_trace_are_refused_with_both_names(tmp_path):
    results(tmp_path)
    write_confirm(tmp_path, [*confirm_rows(), *confirm_rows(trace_id="b" * 64)])
    with pytest.raises(ResultsError) as problem:
        confirmed(load(tmp_path))
    assert "row 4 is from trace bbbbbbbbbbbb, the results are from 5f0c3a9d1e7b" in str(problem.value)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ({"budget": 128}, "h2o B=128 on prompt p0"),
        ({"method": "tova"}, "tova B=64 on prompt p0"),
        ({"prompt": "p9"}, "h2o B=64 on prompt p9"),
        ({"seed": 1}, "h2o B=64 seed 1 on prompt p0"),
        ({"given": {"sinks": 4}}, 'h2o {"sinks": 4} B=64 on prompt p0'),
    ],
)
def test_an_instance_that_the_results_lack_is_refused(tmp_path, place, named):
    results(tmp_path, [fake_row(given={}, seed="")])
    write_confirm(tmp_path, [*confirm_rows(), *confirm_rows(**place)])
    with pytest.raises(ResultsError) as problem:
        confirmed(load(tmp_path))
    assert f"row 4 is {named}, which results.csv lacks" in str(problem.value)


def test_confirmations_of_replaced_results_are_refused(tmp_path):
    results(tmp_path, [fake_row(layer=layer, given={}, seed="", key=f"k{layer}") for layer in range(3)])
    # First 16 hex digits of the SHA-256 of "k0\nk1\nk2".
    write_confirm(tmp_path, confirm_rows(cells="4eb77a6c3ad16ebd"))
    assert confirmed(load(tmp_path)) is not None
    write_confirm(tmp_path, confirm_rows(cells="0123456789abcdef"))
    with pytest.raises(
        ResultsError, match=r"row 1 \(h2o B=64 on prompt p0\) was confirmed from results that"
    ):
        confirmed(load(tmp_path))


def test_a_failed_instance_that_the_results_lack_is_refused_too(tmp_path):
    results(tmp_path, [fake_row(given={}, seed="")])
    write_confirm(tmp_path, [*confirm_rows(), *failed_confirm(method="tova")])
    with pytest.raises(ResultsError, match="row 4 is tova"):
        confirmed(load(tmp_path))


def test_layers_of_an_instance_that_is_not_finished_wait(tmp_path):
    results(tmp_path, [fake_row(budget=budget, given={}, seed="") for budget in (64, 128)])
    begun = layer_rows(confirm_rows(budget=128), [{"drift_mean": 0.5}])
    write_confirm(tmp_path, confirm_rows(), layer_rows(confirm_rows(), [{"drift_mean": 0.1}]) + begun)
    assert list(confirmed(load(tmp_path)).layers["drift_mean"]) == [0.1]


# Instances


def test_a_layer_s_error_is_the_mean_of_its_heads_and_seeds_are_averaged(tmp_path):
    rows, losses = [], []
    for seed, error, loss in ((0, 0.1, 0.2), (1, 0.3, 0.6)):
        for layer in range(3):
            for head, factor in enumerate((1, 3)):
                own = error * factor * (1 + layer)
                rows.append(fake_row("uniform", seed=seed, layer=layer, kv_head=head, rel_err=own, given={}))
        losses += confirm_rows("uniform", loss=loss, seed=seed)
    rows.append(fake_row("uniform", seed=2, rel_err=9.0, given={}))  # a seed that was not confirmed
    found = read(write_confirm(results(tmp_path, rows), losses))
    assert len(found.table) == 1 and found.table["n_seeds"][0] == 2
    assert found.table["loss_increase"][0] == pytest.approx(0.4)
    assert found.measures["rel_err_out_mean"] == pytest.approx(np.array([[0.4, 0.8, 1.2]]))
    assert found.table["family"][0] == "sampled"


def test_losses_of_the_parts_are_next_to_those_of_all_rows(tmp_path):
    found = read(planted(tmp_path, {("h2o", 64): (0.4, {"rel_err_out_mean": 0.1})}))
    assert found.table["loss_increase"][0] == pytest.approx(0.4)
    assert found.table["loss"][0] == pytest.approx(FULL + 0.4)
    assert [(rows, float(part["loss_increase"][0])) for rows, part in found.parts.items()] == [
        ((0, 16), pytest.approx(0.2)), ((16, ROWS), pytest.approx(0.8)),
    ]  # fmt: skip


def test_a_layer_with_a_missing_head_has_no_value(tmp_path):
    rows = [
        fake_row(kv_head=head, given={}, seed="", cosine_mean=value) for head, value in enumerate((0.9, ""))
    ]
    found = read(write_confirm(results(tmp_path, rows), confirm_rows(layers="0")))
    assert "cosine_distance" not in found.measures and "rel_err_out_mean" in found.measures


def test_distances_and_missing_mass_are_one_minus_the_column(tmp_path):
    values = {"rel_err_out_mean": 0.5, "cosine_mean": 0.75, "kept_mass_mean": 0.25}
    found = read(planted(tmp_path, {("h2o", 64): (0.4, values)}))
    assert found.measures["cosine_distance"] == pytest.approx(np.full((1, 3), 0.25))
    assert found.measures["missing_mass"] == pytest.approx(np.full((1, 3), 0.75))


def test_errors_of_the_model_come_from_the_second_file_in_the_order_of_its_layers(tmp_path):
    values = {"rel_err_out_mean": 0.5, "rel_err_resid_mean": [0.1, 0.2, 0.3]}
    found = read(planted(tmp_path, {("h2o", 64): (0.4, values), ("tova", 64): (0.5, values)}))
    assert found.measures["rel_err_resid_mean"] == pytest.approx(np.array([[0.1, 0.2, 0.3]] * 2))
    assert found.deviation == pytest.approx(0)


def test_the_deviation_between_engine_and_model_is_the_largest_of_a_layer(tmp_path):
    folder = planted(tmp_path, {("h2o", 64): (0.4, {"rel_err_out_mean": 0.5})})
    rows = confirm_rows()
    found = read(
        write_confirm(folder, rows, layer_rows(rows, [{"rel_err_out_mean": e} for e in (0.5, 0.52, 0.5)]))
    )
    assert found.deviation == pytest.approx(0.02)


def test_methods_with_equal_results_count_once(tmp_path):
    cells = {
        ("snapkv", 64): (0.4, {"rel_err_out_mean": 0.5}),
        ("pyramidkv", 64): (0.4, {"rel_err_out_mean": 0.5}),
        ("pyramidkv", 128): (0.3, {"rel_err_out_mean": 0.5}),
    }
    found = read(planted(tmp_path, cells))
    # snapkv is first in the results, which counts, not the alphabetical order.
    assert list(zip(found.table["label"], found.table["budget_tokens"], strict=True)) == [
        ("snapkv", 64), ("pyramidkv", 128),
    ]  # fmt: skip
    assert found.same == [("pyramidkv", 64, "snapkv")]


def test_the_recorded_selection_with_the_most_layers_is_used_and_the_rest_counted(tmp_path):
    more = [
        *confirm_rows(loss=0.7, selection="own"),
        *confirm_rows("tova", loss=0.7, selection="own"),
        *confirm_rows(loss=0.9, layers="0"),
    ]
    cells = {("h2o", 64): (0.4, {"rel_err_out_mean": 0.5}), ("tova", 64): (0.5, {"rel_err_out_mean": 0.6})}
    found = read(planted(tmp_path, cells, more=more))
    assert (found.selection, found.layers, found.elsewhere) == ("recorded", [0, 1, 2], 3)
    assert list(found.table["loss_increase"]) == pytest.approx([0.4, 0.5])


def test_own_selections_are_used_if_there_are_no_others(tmp_path):
    rows = [fake_row(layer=layer, given={}, seed="") for layer in range(3)]
    found = read(write_confirm(results(tmp_path, rows), confirm_rows(selection="own")))
    assert found.selection == "own"


def test_errors_of_layers_that_were_not_compressed_do_not_count(tmp_path):
    rows = [fake_row(layer=layer, given={}, seed="", rel_err=0.1 * (1 + layer)) for layer in range(3)]
    found = read(write_confirm(results(tmp_path, rows), confirm_rows(layers="0,2")))
    assert found.measures["rel_err_out_mean"] == pytest.approx(np.array([[0.1, 0.3]]))


def test_a_measure_with_a_missing_layer_has_no_value(tmp_path):
    rows = [fake_row(layer=layer, given={}, seed="") for layer in range(2)]
    found = read(write_confirm(results(tmp_path, rows), confirm_rows(layers="0-2")))
    assert found.measures["rel_err_out_mean"][0] == pytest.approx([0.25, 0.25, np.nan], nan_ok=True)


# Scopes


def test_families_follow_from_phases_weights_and_seeds(tmp_path):
    oneshot = {"params": {"phase": "oneshot"}}
    cells = {
        ("h2o", 64): (0.1, {"params": {"phase": "stream"}, "weight_floats": 0}),
        ("snapkv", 64): (0.2, oneshot | {"weight_floats": 0}),
        ("balancekv", 64): (0.3, oneshot | {"weight_floats": 30}),
        ("static_oracle", 64): (0.05, oneshot | {"weight_floats": 0}),
    }
    found = read(planted(tmp_path, cells))
    family = dict(zip(found.table["label"], found.table["family"], strict=True))
    assert family == {"h2o": "stream", "snapkv": "oneshot", "balancekv": "sampled", "static_oracle": ""}


def test_oracles_are_in_the_scope_that_names_them_and_in_no_other(tmp_path):
    cells = six_methods() | {("static_oracle", 64): (0.01, {"rel_err_out_mean": 0.01})}
    found = read(planted(tmp_path, cells))
    oracle = (found.table["label"] == "static_oracle").to_numpy()
    for scope in scopes(found):
        assert scope.rows[oracle].any() == (scope.name == "with oracles"), scope.name
    assert scopes(found)[0].name == ALL


def with_kept(folder, first, budget=64):
    """Writes kept.h5 with `first(method)` after the prompt and empty lists after that."""
    frame = load(folder)
    with h5py.File(folder / "kept.h5", "w") as file:
        for key, method in zip(frame["key"], frame["method"], strict=True):
            kept = first(method)
            file[f"{key}/kept_flat"] = np.array([*kept, 0, 5], np.int32)
            file[f"{key}/kept_off"] = np.array([0, len(kept), len(kept) + 2])
    return frame


def test_the_first_token_is_looked_for_in_the_list_after_the_prompt(tmp_path):
    folder = planted(tmp_path, six_methods())
    held = {"window": [9], "tova": []}
    frame = with_kept(folder, lambda method: held.get(method, [0, 9]))
    holders = sink_holders(frame)
    assert [name for name, holds in holders.items() if not holds] == ["tova", "window"]
    found = read(folder)
    [scope] = [scope for scope in scopes(found, holders) if scope.name == "first token kept"]
    assert set(found.table["label"][scope.rows]) == {"adakv", "h2o", "knorm", "snapkv"}


def test_without_kept_sets_there_is_no_statement_on_the_first_token(tmp_path):
    found = read(planted(tmp_path, six_methods()))
    assert sink_holders(load(tmp_path)) is None
    assert "first token kept" not in [scope.name for scope in scopes(found, None)]


# Draws


def drawn(sd, n_draws=4, **place):
    """Rows of an instance with coded rows; `sd` of one draw, in nats."""
    return confirm_rows(**place, n_draws=n_draws, loss_increase_sd=sd, kl_mean_sd=sd / 10)


def test_tables_without_draws_are_read_as_single_draws_of_no_known_spread(tmp_path):
    write_confirm(tmp_path, confirm_rows())
    frame = read_confirm_csv(tmp_path / "confirm.csv")
    assert frame[["n_draws", "loss_increase_sd", "kl_mean_sd"]].isna().all(axis=None)
    assert list(draw_variance(frame)) == [0, 0, 0]


def test_a_mean_over_draws_has_the_variance_of_one_over_their_number(tmp_path):
    single = confirm_rows("tova", n_draws=1, loss_increase_sd="")
    write_confirm(tmp_path, [*drawn(0.02), *single])
    variance = draw_variance(read_confirm_csv(tmp_path / "confirm.csv"))
    assert list(variance) == pytest.approx([1e-4] * 3 + [0] * 3)


def test_the_error_by_draws_of_averaged_seeds_is_that_of_their_mean(tmp_path):
    rows = [fake_row("uniform", seed=seed, layer=layer, given={}) for seed in (0, 1) for layer in range(3)]
    losses = [*drawn(0.02, method="uniform", seed=0), *drawn(0.06, method="uniform", seed=1)]
    found = read(write_confirm(results(tmp_path, rows), losses))
    # Standard errors of the two means: 0.01 and 0.03.
    assert found.table["draw_error"][0] == pytest.approx(np.hypot(0.01, 0.03) / 2)


def test_coded_rows_with_one_draw_are_distinguished_from_masks(tmp_path):
    int4 = json.dumps({"row_format": {"name": "int4", "group": 64}})
    apart, exact = ({"row_format": {"key": "source", "value": one}} for one in ("int4", "f32"))
    rows = [
        *confirm_rows("a", params=int4),
        *confirm_rows("values", params=json.dumps(apart)),
        *confirm_rows("exact", params=json.dumps(exact)),
        *confirm_rows("b", params='{"row_format":"source"}'),
        *confirm_rows("c", params="{}"),
        *confirm_rows("qjl"),
        *drawn(0.02, method="d", params=int4),
    ]
    write_confirm(tmp_path, rows)
    frame = read_confirm_csv(tmp_path / "confirm.csv")
    assert set(frame["method"][drawn_once(frame)]) == {"a", "qjl", "values"}


# Selections and texts


def test_own_choices_are_compared_with_the_recorded_ones_of_the_same_instance(tmp_path):
    more = [
        *confirm_rows("h2o", 64, 0.7, selection="own", prompt="p0"),
        *confirm_rows("h2o", 64, 0.5, selection="own", prompt="p1"),
        *confirm_rows("tova", 64, 0.9, selection="own", layers="0"),  # other layers: not a pair
    ]
    cells = {("h2o", 64): (0.4, {"rel_err_out_mean": 0.5}), ("tova", 64): (0.5, {"rel_err_out_mean": 0.6})}
    told = confirmed(load(planted(tmp_path, cells, prompts=("p0", "p1"), more=more)))
    [row] = by_selection(told.losses).to_dict("records")
    assert (row["label"], row["n_texts"]) == ("h2o", 2)
    assert [row[name] for name in ("recorded", "own", "difference", "smallest", "largest")] == pytest.approx(
        [0.4, 0.6, 0.2, 0.1, 0.3]
    )
    mean, same, most = hidden(by_selection(told.losses))
    assert (mean, same, most["label"]) == (pytest.approx(0.2), 0, "h2o")


def test_the_error_of_a_difference_of_choices_is_that_of_its_draws(tmp_path):
    rows, losses = [], []
    for prompt in ("p0", "p1"):
        rows += [fake_row(layer=layer, given={}, seed="", prompt=prompt) for layer in range(3)]
        losses += [*drawn(0.06, prompt=prompt), *drawn(0.08, prompt=prompt, selection="own")]
    told = confirmed(load(write_confirm(results(tmp_path, rows), losses)))
    # Standard errors of means of 4 draws: 0.03 and 0.04, so 0.05 for one text's difference; then two texts.
    assert by_selection(told.losses)["standard_error"][0] == pytest.approx(0.05 / 2**0.5)


def test_the_spread_over_texts_is_a_median_of_ratios_above_noise(tmp_path):
    rows, losses = [], []
    for prompt, factor in (("p0", 1), ("p1", 3)):
        for method, loss in (("h2o", 0.1), ("tova", 0.2), ("knorm", 0.001)):
            rows += [fake_row(method, given={}, seed="", prompt=prompt, rel_err=loss * (1 + factor) / 2)]
            losses += confirm_rows(method, loss=loss * factor, prompt=prompt, layers="0")
    found = read(write_confirm(results(tmp_path, rows), losses))
    values = found.measures["rel_err_out_mean"][:, 0]
    assert spread_over_texts(found, values) == pytest.approx((3, 2, 2))
