"""`kvreplay confirm OUT`, and the page's section on whether the offline error predicts the loss."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest
from fake_confirm import confirm_rows, failed_confirm, planted, six_methods, write_confirm
from kvanalysis.plots.confirm import loss_against_error, loss_by_layer
from kvanalysis.predict.words import layers_words, two
from kvreplay.program import main
from page_parts import only_plots, without_sections
from test_kvanalysis_confirm_ranks import noise
from test_kvanalysis_fake import failed_row, fake_row, write_results
from test_kvanalysis_report import Page

QUESTION = "Does the offline error predict the loss?"


@pytest.fixture
def no_pictures(monkeypatch):
    """Leaves figures, claims and the answer out of the page; other tests cover them."""
    only_plots(monkeypatch)
    without_sections(monkeypatch, "answer", "claims")


@pytest.fixture(scope="module")
def monotone(tmp_path_factory):
    """(page, its text) for six methods with losses in the order of their errors."""
    with pytest.MonkeyPatch.context() as patch:
        only_plots(patch)
        without_sections(patch, "answer", "claims")
        return page_of(planted(tmp_path_factory.mktemp("monotone"), six_methods()))


def page_of(folder):
    assert main(["report", str(folder)]) == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    return Page(text), " ".join(re.sub(r"<[^>]+>", " ", text).split())


def two_measures(folder, **changes):
    """A run in which a second measure predicts the loss, and the main one does not."""

    def other(number, place):
        return {"rel_err_fro": 0.01 * (1 + number) * (2 - place)} | noise(number, place)

    cells = six_methods(lambda loss: 0.2 + loss % 0.13, other=other)
    return planted(folder, cells, **{"prompts": ("p0", "p1")} | changes)


# Words


@pytest.mark.parametrize(
    ("layers", "words"), [([7], "layer 7"), ([0, 1, 2], "layers 0 to 2"), ([0, 7, 15], "layers 0, 7, 15")]
)
def test_the_compressed_layers_are_named(layers, words):
    assert layers_words(SimpleNamespace(layers=layers)) == words


def test_a_correlation_below_one_is_not_rounded_to_one():
    assert [two(value) for value in (1.0, 0.9961, 0.5, -0.9999)] == ["1.00", "0.996", "0.50", "-1.000"]


def test_the_page_states_the_noise_of_coded_rows(tmp_path, no_pictures):
    path = two_measures(tmp_path, prompts=("p0",)) / "confirm.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False).assign(n_draws="1", loss_increase_sd="")
    of_h2o = table["method"] == "h2o"
    table.loc[of_h2o, ["n_draws", "loss_increase_sd"]] = ["4", "0.02"]
    table.loc[table["method"] == "tova", "params"] = '{"row_format":"int8"}'
    table.to_csv(path, index=False)
    text = page_of(tmp_path)[1]
    assert (
        "2 instances with quantised rows: means over several draws of the rounding, with a standard error of"
        " 0.010 to 0.010 nats. 2 instances with quantised rows: one draw each, whose noise is unknown" in text
    )


# The command


def test_confirm_prints_the_table_best_first_and_writes_both_files(tmp_path, capsys):
    two_measures(tmp_path)
    assert main(["confirm", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split("  ")[0] == "measure" and "Spearman" in lines[0] and " p0 " in lines[0]
    assert lines[1].startswith("rel_err_fro") and "1.00 … 1.00" in lines[1]
    assert "2000 resamples, seed 0" in printed.err and "never pooled" in printed.err
    for name in ("confirm_correlations.csv", "confirm_exceptions.csv"):
        assert str(tmp_path / name) in printed.err
    table = pd.read_csv(
        tmp_path / "confirm_correlations.csv", keep_default_na=False, na_values={"gain": [""]}
    )
    best = table[(table["scope"] == "all") & (table["target"] == "loss_increase")].iloc[0]
    assert (best["measure"], float(best["spearman"]), best["prompt"]) == ("rel_err_fro", 1, "")
    assert set(table["target"]) == {"loss_increase", "kl_mean", "top1_lost"}
    assert set(table["prompt"]) == {"", "p0", "p1"}
    pairs = pd.read_csv(tmp_path / "confirm_exceptions.csv")
    assert {"trace_id", "measure", "less_error", "less_loss", "loss_difference"} <= set(pairs)


def test_the_page_gives_the_range_over_many_texts(tmp_path, no_pictures):
    two_measures(tmp_path, prompts=[f"text{number}" for number in range(7)], n_layers=1)
    _, words = page_of(tmp_path)
    assert "of 7 texts, the measure that is best on the other texts reaches 1.00 on average" in words
    assert "text3 1.00" not in words


@pytest.mark.parametrize(("n_texts", "columns"), [(6, 6), (7, 0)])
def test_each_text_has_a_column_unless_there_are_too_many(tmp_path, capsys, n_texts, columns):
    planted(tmp_path, six_methods(), prompts=[f"text{number}" for number in range(n_texts)])
    assert main(["confirm", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].count("text") == columns


@pytest.mark.parametrize("target", ["kl_mean", "top1"])
def test_another_target_is_printed_on_request(tmp_path, capsys, target):
    folder = planted(tmp_path, six_methods())
    text = (folder / "confirm.csv").read_text()
    # KL and the agreement of first choices fall while the loss rises.
    lines = [line.split(",") for line in text.splitlines()]
    at = {name: place for place, name in enumerate(lines[0])}
    for line in lines[1:]:
        loss = float(line[at["loss_increase"]])
        line[at["kl_mean"]], line[at["top1_agreement"]] = str(1 / (1 + loss)), str(0.5 + loss / 10)
    (folder / "confirm.csv").write_text("\n".join(",".join(line) for line in lines) + "\n")
    assert main(["confirm", str(tmp_path), "--target", target]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    [main_row] = [row for row in rows if row[:2] == ["rel_err_out_mean", "mean"]]
    assert "-1.00" in main_row


def test_methods_may_be_chosen_or_left_out_and_then_nothing_is_written(tmp_path, capsys):
    two_measures(tmp_path)
    assert main(["confirm", str(tmp_path), "--without", "window"]) == 0
    assert "20 instances of 5 methods" in capsys.readouterr().err
    assert main(["confirm", str(tmp_path), "--methods", "h2o,tova,knorm,adakv,snapkv"]) == 0
    assert "20 instances of 5 methods" in capsys.readouterr().err
    assert not (tmp_path / "confirm_correlations.csv").exists()
    assert main(["confirm", str(tmp_path), "--without", "quest"]) == 2
    assert "--without quest: no such method; methods: adakv, h2o" in capsys.readouterr().err


def test_methods_that_leave_nothing_to_compare_are_an_error_and_not_an_empty_table(tmp_path, capsys):
    two_measures(tmp_path)
    assert main(["confirm", str(tmp_path), "--methods", "h2o"]) == 2
    assert "no text has the 5 instances" in capsys.readouterr().err


def test_a_folder_that_nothing_was_confirmed_of_is_an_error_with_its_remedy(tmp_path, capsys):
    write_results(tmp_path, [fake_row()])
    assert main(["confirm", str(tmp_path)]) == 3
    assert (
        f"{tmp_path}: holds no confirm.csv: run the model first, with --model ID|DIR"
        in capsys.readouterr().err
    )


def test_instances_that_all_failed_are_an_error(tmp_path, capsys):
    write_confirm(write_results(tmp_path, [fake_row(given={}, seed="")]), failed_confirm())
    assert main(["confirm", str(tmp_path)]) == 3
    assert "holds no finished instance" in capsys.readouterr().err


# The page


def test_without_confirm_csv_the_page_has_no_such_section(tmp_path, no_pictures):
    write_results(tmp_path, [fake_row()])
    assert QUESTION not in page_of(tmp_path)[1]


def test_the_page_answers_with_the_best_measure_the_gain_and_the_held_out_texts(tmp_path, no_pictures):
    page, text = page_of(two_measures(tmp_path))
    assert QUESTION in text
    assert "#does-the-offline-error-predict-the-loss" in page.attributes("href")
    assert "ratio of norms, last rows, mean over layers, ranks instances most like the loss" in text
    assert "rank correlation 1.00 [1.00, 1.00]" in text
    assert re.search(r"main measure \(mean relative error, mean over layers\) reaches -?0\.\d\d \[", text)
    assert re.search(
        r"the difference is \+\d\.\d\d \[\+\d\.\d\d, \+\d\.\d\d\], paired; the interval excludes zero", text
    )
    assert "p0 1.00 by ratio of norms" in text and "p1 1.00 by ratio of norms" in text
    assert "24 instances of 6 methods on 2 texts" in text


def test_measures_that_need_the_model_and_the_yardstick_are_named_after_the_best(tmp_path, no_pictures):
    def other(number, place):
        loss = 0.05 * (1 + number) * (2 - place)
        return {"rel_err_fro": loss, "rel_err_resid_mean": 1 + loss % 0.13, "drift_mean": loss}

    text = page_of(planted(tmp_path, six_methods(lambda loss: 1 + loss % 0.13, other=other)))[1]
    assert "ratio of norms, last rows, mean over layers, ranks instances most" in text
    behind = "error behind W_O over the residual stream, mean over layers, "
    assert re.search(f"Among measures that need the model: {behind}-?0", text)
    assert "For comparison (not a prediction): drift of the residual stream, mean over layers, 1.00" in text


def test_the_best_measure_from_traces_is_named_if_the_best_needs_the_model(tmp_path, no_pictures):
    def other(number, place):
        return {"rel_err_resid_mean": 0.05 * (1 + number) * (2 - place)}

    text = page_of(planted(tmp_path, six_methods(lambda loss: 1 + loss % 0.13, other=other)))[1]
    assert "error behind W_O over the residual stream, mean over layers, ranks instances most" in text
    assert (
        "It needs the model; among measures that need only traces, mean relative error, mean over layers, is"
        " best" in text
    )


def test_a_best_measure_without_significant_gain_is_marked(tmp_path, no_pictures):
    cells = six_methods(
        lambda loss: loss, other=lambda number, place: {"rel_err_fro": 0.01 * (1 + number) * (2 - place)}
    )
    cells["tova", 64] = (cells["tova", 64][0], cells["tova", 64][1] | {"rel_err_out_mean": 0.39})
    text = page_of(planted(tmp_path, cells))[1]
    assert "paired; the interval includes zero" in text


def test_exceptions_are_on_the_page_with_both_numbers(tmp_path, no_pictures):
    cells = six_methods(budgets=(64, 128)) | {("streaming_llm", 64): (0.11, {"rel_err_out_mean": 0.9})}
    page, text = page_of(planted(tmp_path, cells))
    assert "streaming_llm loses less than predicted (in 4 pairs, 1 text)" in text
    assert (
        "The widest: on p0 at B = 64, tova has the lower error, 0.500 against 0.900 of streaming_llm, but the"
        " higher loss, 0.500 against 0.110" in text
    )
    assert [
        "p0",
        "64",
        "tova",
        "streaming_llm",
        "0.500",
        "0.900",
        "1.80",
        "+0.500",
        "+0.110",
        "+0.390",
    ] in page.rows


def test_a_monotone_run_reports_no_exception(monotone):
    assert "no pair at one budget has errors 1.5-fold apart and opposite losses" in monotone[1]


def test_both_selections_are_compared_and_a_single_one_is_not(tmp_path, no_pictures, monotone):
    own = {("h2o", 64): 0.5, ("h2o", 128): 0.1004}  # 0.2 and 0.1 with the recorded choices
    more = [row for place, loss in own.items() for row in confirm_rows(*place, loss, selection="own")]
    page, text = page_of(planted(tmp_path, six_methods(), more=more))
    assert "Over 2 instances with both, own choices change the loss increase by +0.150 nats" in text
    assert "1 change by less than 0.001; the largest change is that of h2o at B = 64, by +0.300" in text
    assert ["h2o", "64", "+0.200", "+0.500", "+0.300", "–", "+0.300 … +0.300", "1"] in page.rows
    assert "2 more instances with another selection or other layers are left out" in text
    assert "own choices" not in monotone[1].lower()


def test_losses_near_the_prompt_and_far_from_it_are_in_a_table(monotone):
    page, text = monotone
    assert "Mean loss increase over texts at B = 64" in text
    [row] = [row for row in page.rows if row[0] == "window" and "+0.300" in row]
    assert row[2:] == ["+0.300", "+1.200", "+0.600"]


def test_failed_instances_are_named_with_the_reason(tmp_path, no_pictures):
    folder = planted(tmp_path, six_methods(), more=failed_confirm(method="subgen", error="no lists"))
    rows = (folder / "results.csv").read_text()
    write_results(tmp_path / "other", [failed_row(method="subgen", seed="", given={})])
    (folder / "results.csv").write_text(
        rows + (tmp_path / "other/results.csv").read_text().splitlines()[1] + "\n"
    )
    assert "Not confirmed: subgen: no lists (1 instance)" in page_of(folder)[1]


def test_the_report_draws_the_figures_of_the_loss(tmp_path, monkeypatch):
    only_plots(monkeypatch, loss_against_error, loss_by_layer)
    without_sections(monkeypatch, "answer", "claims")
    two_measures(tmp_path, prompts=("p0",))
    page, text = page_of(tmp_path)
    assert (
        "Offline error against loss" in text and "How well the error of each layer predicts the loss" in text
    )
    assert "figures/loss_against_error_page.png" in page.attributes("href")


def test_foreign_rows_stop_the_report_with_a_message(tmp_path, capsys, no_pictures):
    planted(tmp_path, six_methods(), more=confirm_rows("subgen"))
    assert main(["report", str(tmp_path)]) == 3
    assert "subgen B=64 on prompt p0, which results.csv lacks" in capsys.readouterr().err
