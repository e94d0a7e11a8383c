"""Loading results.csv: types, refusals, labels."""

import pandas as pd
import pytest
from kvanalysis import ResultsError, load
from test_kvanalysis_fake import COLUMNS, FAKE_META, failed_row, fake_row, write_results


def labels(folder, rows):
    return list(load(write_results(folder, rows))["label"])


def refusal(folder, rows, **options):
    with pytest.raises(ResultsError) as caught:
        load(write_results(folder, rows, **options))
    return str(caught.value)


def test_counts_are_whole_numbers_and_measures_are_floats(tmp_path):
    frame = load(write_results(tmp_path, [fake_row(budget=64, rel_err=0.25), fake_row("exact", budget="")]))
    assert frame["budget_tokens"].tolist() == [64, pd.NA]
    assert str(frame["layer"].dtype) == "Int64"
    assert frame["rel_err_out_mean"].tolist() == [0.25, 0.25]


def test_an_empty_measure_is_missing_and_not_zero(tmp_path):
    frame = load(write_results(tmp_path, [fake_row(bound_holds="")]))
    assert frame["bound_holds"].isna().all()


def test_parameters_become_dictionaries_and_an_empty_field_means_none(tmp_path):
    frame = load(
        write_results(tmp_path, [fake_row("snapkv", {"window": 32}), fake_row("tova") | {"params": ""}])
    )
    assert frame["params"].tolist() == [{"window": 32}, {}]


@pytest.mark.parametrize("given", ["", "{}"])
def test_a_run_without_explicit_parameters_is_read(tmp_path, given):
    rows = [fake_row("tova") | {"given": given}]
    frame = load(write_results(tmp_path, rows, columns=(*COLUMNS, "given")))
    assert frame["given"].tolist() == [{}]


@pytest.mark.parametrize("given", ["1", "nan", "[1]"])
def test_explicit_parameters_that_are_no_object_are_refused(tmp_path, given):
    rows = [fake_row("tova") | {"given": given}]
    assert "given is not JSON" in refusal(tmp_path, rows, columns=(*COLUMNS, "given")).replace(
        " a JSON", " JSON"
    )


def test_text_that_looks_like_a_number_or_like_missing_stays_text(tmp_path):
    frame = load(write_results(tmp_path, [fake_row(prompt="007"), fake_row(prompt="NA")]))
    assert list(frame["prompt"]) == ["007", "NA"]


def test_failed_rows_stay_with_their_status_and_message(tmp_path):
    frame = load(write_results(tmp_path, [fake_row(kv_head=0), failed_row("no mass", kv_head=1)]))
    assert list(frame["status"]) == ["ok", "failed"]
    assert frame["error"].iloc[1] == "no mass"


def test_the_meta_file_travels_with_the_table_and_may_be_absent(tmp_path):
    assert load(write_results(tmp_path / "with", [fake_row()], FAKE_META)).attrs["meta"] == FAKE_META
    assert load(write_results(tmp_path / "without", [fake_row()])).attrs["meta"] == {}


def test_columns_beyond_the_contract_are_kept(tmp_path):
    frame = load(write_results(tmp_path, [fake_row(rmse=0.5)], columns=[*COLUMNS, "rmse"]))
    assert list(frame["rmse"]) == [0.5]


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        (["1", "", "2e-3"], [1.0, None, 2e-3]),
        (["1", "", "nan"], ["1", "", "nan"]),
        (["True", "", "False"], ["True", "", "False"]),
        (["True", "True", "False"], ["True", "True", "False"]),
        (["", "", ""], [None, None, None]),
    ],
)
def test_a_column_beyond_the_contract_holds_numbers_if_all_its_fields_are_numbers(tmp_path, fields, read):
    rows = [fake_row(kv_head=head, more=field) for head, field in enumerate(fields)]
    column = load(write_results(tmp_path, rows, columns=[*COLUMNS, "more"]))["more"]
    assert [None if pd.isna(value) else value for value in column] == read


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ResultsError, match=r"results\.csv: no such file"):
        load(tmp_path)


def test_missing_columns_are_named(tmp_path):
    columns = [name for name in COLUMNS if name not in ("seed", "status")]
    assert refusal(tmp_path, [fake_row()], columns=columns).endswith("missing columns: seed, status")


def test_a_foreign_table_is_not_called_incomplete(tmp_path):
    (tmp_path / "results.csv").write_text("epoch,loss\n1,0.5\n")
    with pytest.raises(ResultsError, match="not a kvreplay results file"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\x00\xff", b"\x00" * 64])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "results.csv").write_bytes(content)
    with pytest.raises(ResultsError, match="not a kvreplay results file"):
        load(tmp_path)


def test_a_table_without_rows_says_so(tmp_path):
    assert "has no cell yet" in refusal(tmp_path, [])


@pytest.mark.parametrize("line", ["only,three,fields", ",".join(["1"] * 60)])
def test_a_row_with_too_few_or_too_many_fields_is_refused(tmp_path, line):
    path = write_results(tmp_path, [fake_row()]) / "results.csv"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ResultsError, match=r"row 2: prompt is empty|not a kvreplay results file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "wanted"),
    [
        ("rel_err_out_mean", "much", "a finite number"),
        ("rel_err_out_mean", "nan", "a finite number"),
        ("cosine_mean", "inf", "a finite number"),
        ("budget_tokens", "64.5", "a whole number"),
        ("n_tokens", "True", "a whole number"),
        ("n_tokens", "1e17", "a whole number"),
    ],
)
def test_a_value_that_is_no_number_is_named_with_its_row_and_column(tmp_path, column, value, wanted):
    text = refusal(tmp_path, [fake_row(kv_head=0), fake_row(kv_head=1, **{column: value})])
    assert f"row 2, column {column}: '{value}' is not {wanted}" in text


def test_an_empty_identity_field_is_refused(tmp_path):
    assert "row 1: method is empty" in refusal(tmp_path, [fake_row("")])


def test_a_repeated_cell_is_refused(tmp_path):
    assert "row 2 repeats a cell" in refusal(tmp_path, [fake_row(), fake_row(rel_err=0.5)])


@pytest.mark.parametrize("text", ["{window", "[1]"])
def test_parameters_that_are_no_json_object_are_refused(tmp_path, text):
    assert "params is not" in refusal(tmp_path, [fake_row() | {"params": text}])


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_meta_file_that_is_no_json_object_is_refused(tmp_path, text):
    (write_results(tmp_path, [fake_row()]) / "results.meta.json").write_text(text)
    with pytest.raises(ResultsError, match=r"results\.meta\.json"):
        load(tmp_path)


def test_a_method_with_one_instance_is_labelled_by_its_name(tmp_path):
    assert labels(tmp_path, [fake_row("h2o", {"recent_frac": 0.5, "heavy": 32})]) == ["h2o"]


def test_only_the_parameters_that_differ_enter_the_label(tmp_path):
    rows = [fake_row("streaming_llm", {"positions": p, "sinks": 4}) for p in ("cache", "original")]
    assert labels(tmp_path, rows) == ["streaming_llm positions=cache", "streaming_llm positions=original"]


def test_a_parameter_that_one_instance_lacks_is_shown_on_the_other(tmp_path):
    assert labels(tmp_path, [fake_row("h2o"), fake_row("h2o", {"row_format": "int4"})]) == [
        "h2o",
        "h2o int4",
    ]


INT4, INT8 = {"name": "int4", "group": 64}, {"name": "int8", "group": 64}
TURNED = {"name": "int4", "group": 64, "rotate": "hadamard"}
TQ_MSE = {"bits": 3, "codebook": "beta", "name": "tq_mse", "norm_correction": False, "rotation": "haar"}
GAUSS = TQ_MSE | {"codebook": "gauss", "rotation": "hadamard", "norm_correction": True}
KVQUANT = {"name": "kvquant", "bits": 3, "calibrate_from": 4, "outliers": 1}
PROTECTED = {"sinks": 4, "recent": 1}
GROUPS = {"g": 32, "R": 128}


@pytest.mark.parametrize(
    ("row_format", "name"),
    [
        ("f16", "f16"),
        (INT4, "int4"),
        (INT4 | {"group": 32}, "int4 group=32"),
        (TURNED, "int4 hadamard"),
        (TURNED | {"rotate_block": 16}, "int4 hadamard rotate_block=16"),
        ({"key": TQ_MSE, "value": "source"}, "K tq_mse 3 + V source"),
        ({"key": GAUSS, "value": INT4}, "K tq_mse 3 gauss hadamard norm_correction + V int4"),
        ({"key": "source", "value": INT4}, "K source + V int4"),
        ({"key": {"name": "kivi", "bits": 4}, "value": {"name": "kivi", "bits": 2}}, "K kivi 4 + V kivi 2"),
        ({"name": "kivi", "bits": 2, **GROUPS, "keys": "pre_rope"}, "kivi 2 pre_rope"),
        (KVQUANT | {"full_precision": PROTECTED}, "kvquant 3 sinks=4"),
        (KVQUANT | {"keys": "post_rope", "outliers": 0.5}, "kvquant 3 post_rope outliers=0.5"),
        (INT4 | {"full_precision": {"sinks": 4, "recent": 64}}, "int4 recent=64 sinks=4"),
        ({"key": INT4, "value": INT8, "skip_layers": [-1, 0]}, "K int4 + V int8 skip_layers=-1/0"),
        (INT4 | {"own_row": "coded"}, "int4 own_row=coded"),
        ({"name": "fp8_e4m3", "scale": 1}, "fp8_e4m3"),
        ({"name": "fp8_e4m3", "scale": "head"}, "fp8_e4m3 scale=head"),
        ({"name": "int4_token_head", "rotate": "none"}, "int4_token_head rotate=none"),
        ({"name": "polar", "levels": [4, 2], "rotation": "haar"}, "polar levels=4/2"),
        ({"name": "yet_unknown", "knob": 3}, "yet_unknown knob=3"),
    ],
)
def test_a_row_format_is_named_by_its_changed_options(tmp_path, row_format, name):
    rows = [fake_row("exact", budget=""), fake_row("exact", {"row_format": row_format}, budget="")]
    assert labels(tmp_path, rows) == ["exact", f"exact {name}"]
    assert "," not in name  # commas separate labels on the command line


def test_a_size_that_follows_from_the_budget_does_not_split_a_curve(tmp_path):
    rows = [fake_row("h2o", {"recent": budget // 2}, budget, given={}) for budget in (64, 128)]
    assert labels(tmp_path, rows) == ["h2o", "h2o"]


def test_a_size_that_follows_from_a_swept_share_leaves_the_label_to_the_share(tmp_path):
    rows = [
        fake_row(
            "h2o", {"recent_frac": share, "recent": int(share * budget)}, budget, given={"recent_frac": share}
        )
        for share in (0.25, 0.5)
        for budget in (64, 128)
    ]
    assert labels(tmp_path, rows) == ["h2o recent_frac=0.25"] * 2 + ["h2o recent_frac=0.5"] * 2


def test_chosen_parameters_that_change_together_are_both_shown(tmp_path):
    rows = [fake_row("snapkv", {"window": w, "kernel": k}) for w, k in ((32, 7), (64, 9))]
    assert labels(tmp_path, rows) == ["snapkv kernel=7 window=32", "snapkv kernel=9 window=64"]


def test_variants_run_at_different_budgets_have_different_labels(tmp_path):
    rows = [fake_row("h2o", {"recent_frac": 0.25}, 64), fake_row("h2o", {"recent_frac": 0.5}, 128)]
    assert labels(tmp_path, rows) == ["h2o recent_frac=0.25", "h2o recent_frac=0.5"]


def test_a_parameter_set_at_one_place_only_is_no_reason_to_split(tmp_path):
    rows = [
        fake_row("pyramidkv", {"layer_budget": size}, 64, layer=layer, given={})
        for layer, size in ((0, 90), (1, 38))
    ]
    assert labels(tmp_path, rows) == ["pyramidkv", "pyramidkv"]


def test_budgets_calibrated_on_the_measured_rows_are_an_oracle(tmp_path):
    rules = [{"name": "lu_kv", "calibration": whose} for whose in ("others", "self")]
    rows = [fake_row("snapkv", {"allocator": rule}) for rule in [*rules, "ada"]]
    frame = load(write_results(tmp_path, rows))
    assert list(frame["oracle"]) == [False, True, False]


def test_scores_from_the_future_are_an_oracle_and_never_called_h2o(tmp_path):
    rows = [fake_row("h2o", {"variant": v}) for v in ("real_drop", "oracle_global")]
    frame = load(write_results(tmp_path, rows))
    assert list(frame["label"]) == ["h2o variant=real_drop", "oracle_global"]
    assert list(frame["oracle"]) == [False, True]


def test_extras_of_a_method_are_a_dict_of_numbers(tmp_path):
    rows = [
        fake_row(kv_head=h) | {"extras": text} for h, text in enumerate(('{"clusters":3,"share":0.5}', ""))
    ]
    frame = load(write_results(tmp_path, rows, columns=[*COLUMNS, "extras"]))
    assert frame["extras"].tolist() == [{"clusters": 3, "share": 0.5}, {}]
    assert frame["extras_json"].tolist() == ['{"clusters":3,"share":0.5}', ""]
    none = load(write_results(tmp_path / "none", [fake_row()]))
    assert none["extras"].tolist() == [{}]


def test_extras_that_are_no_object_are_refused_with_their_text(tmp_path):
    rows = [fake_row() | {"extras": "[1]"}]
    with pytest.raises(ResultsError, match=r"extras is not a JSON object: '\[1\]'"):
        load(write_results(tmp_path, rows, columns=[*COLUMNS, "extras"]))
