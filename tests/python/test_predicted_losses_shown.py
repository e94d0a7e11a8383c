"""Predicted losses on a page, by hand: means over texts, agreement with the model, the section."""

import numpy as np
import pandas as pd
import pytest
from fake_confirm import planted, six_methods
from kvanalysis import load
from kvanalysis.answer.nats import nats_at
from kvanalysis.answer.reached import Question
from kvanalysis.answer.sizes import SIZES
from kvanalysis.data.confirmed import confirmed, whole_rows
from kvanalysis.loss.agreement import agreement, points
from kvanalysis.loss.over_texts import over_texts
from kvanalysis.loss.predicted import Losses, losses_of
from kvanalysis.page.loss_section import loss_section
from kvanalysis.predict.best import best_choice
from kvanalysis.predict.correlations import correlations
from kvanalysis.predict.instances import instances_of
from test_kvanalysis_predict import run_of


def losses(why="", **changes):
    table = pd.DataFrame(
        {"trace_id": "t", "prompt": ["a", "b"], "label": "h2o", "budget_tokens": 64, "layers": 2,
         "kl": [0.1, 0.3], "kl_low": [0.05, 0.2], "kl_high": [0.2, 0.4], "kl_head": [0.01, 0.03],
         "kl_mean": [0.2, np.nan]}
    )  # fmt: skip
    return Losses(table.assign(**changes), why)


def test_texts_are_averaged_and_measured_ones_separately():
    row = over_texts(losses()).iloc[0]
    assert (row["loss"], row["low"], row["high"]) == pytest.approx((0.2, 0.125, 0.3))
    assert (row["measured"], row["n_texts"], row["n_measured"]) == (0.2, 2, 1)


def test_an_interval_needs_that_of_every_text():
    row = over_texts(losses(kl_low=[0.05, np.nan])).iloc[0]
    assert np.isnan(row["low"])
    assert row["high"] == pytest.approx(0.3)


def test_without_projections_only_heads_are_averaged():
    assert over_texts(losses(why="no file", kl=np.nan)).iloc[0]["loss"] == pytest.approx(0.02)


def test_agreement_is_of_ranks_and_of_ratios_below_a_nat():
    found = agreement([0.1, 0.2, 0.4, 0.8, 1.6, 0], [0.2, 0.4, 0.8, 0.4, 9, 1])
    # Ranks 1 2 3 4 5 against 1 2.5 4 2.5 5: the last instance, with a prediction of 0, is left out.
    assert found.spearman == pytest.approx(8 / np.sqrt(10 * 9.5))
    assert found.instances == 5
    assert np.isnan(found.factor)  # four instances below one nat
    found = agreement([0.1, 0.2, 0.4, 0.8, 0.1], [0.2, 0.4, 0.8, 0.4, 0.4])
    assert found.factor == pytest.approx(2)
    assert found.scatter == pytest.approx(np.exp(np.log([2, 2, 2, 0.5, 4]).std(ddof=1)))
    assert agreement([1, 2], [1, 2]) is None


def test_points_hold_predicted_and_measured_losses():
    assert list(points(losses().table)["prompt"]) == ["a"]
    assert points(losses().table.drop(columns="kl_mean")).empty


def test_losses_at_a_share_are_interpolated_and_averaged_over_texts():
    """Budgets at 10 and 40 % of the bytes cost 0.4 and 0.1 nats on one text, twice that on the other."""
    rows = pd.DataFrame(
        [
            {"trace_id": "t", "prompt": prompt, "layer": layer, "kv_head": 0, "label": "h2o", "seed": np.nan,
             "budget_tokens": budget, "budget_share": "", "total_bytes": share * 100, "full_bytes": 100}
            for prompt in "ab" for layer in (0, 1) for budget, share in ((10, 0.1), (40, 0.4))
        ]
    )  # fmt: skip
    table = pd.DataFrame(
        [
            {"trace_id": "t", "prompt": prompt, "label": "h2o", "budget_tokens": budget, "seed": np.nan,
             "kl": kl * times, "kl_low": kl * times / 2, "kl_high": kl * times * 2}
            for prompt, times in (("a", 1), ("b", 2)) for budget, kl in ((10, 0.4), (40, 0.1))
        ]
    )  # fmt: skip
    found = nats_at(Losses(table), rows, Question(0.2, "kl", SIZES["peak"], marked=False))
    # Halfway on a logarithmic scale of bytes: 0.2 and 0.4, on average 0.3.
    assert found.loc["h2o"].tolist() == pytest.approx([0.3, 0.15, 0.6])
    for nothing in (Losses(table, "no projections"), None):
        assert nats_at(nothing, rows, Question(0.2, "kl", SIZES["peak"], marked=False)).empty


def text_of(parts):
    return " ".join(str(part) for part in parts)


def test_the_section_gives_nats_with_their_interval_and_when_to_trust_them(tmp_path):
    frame = run_of(tmp_path)
    said = text_of(loss_section(frame, losses_of(frame)))
    assert "snapkv" in said and "B = 8" in said
    assert "<small>" in said and " … " in said
    assert "How far to trust it" in said and "errors in 2 layers" in said


def test_measured_losses_are_in_brackets_next_to_the_prediction(tmp_path):
    frame = run_of(tmp_path)
    found = losses_of(frame)
    assert "In brackets" not in text_of(loss_section(frame, found))
    said = text_of(loss_section(frame, Losses(found.table.assign(kl_mean=1.5))))
    assert "In brackets: the loss that `kvreplay confirm` measured" in said
    assert ">2.00 (1.50)<small>" in said


def test_without_projections_the_section_explains_why_only_heads_are_shown(tmp_path):
    frame = run_of(tmp_path)
    (tmp_path / "projections.h5").unlink()
    said = text_of(loss_section(frame, losses_of(frame)))
    assert "<small>" not in said
    assert "projections.h5: no such file" in said and "single query heads" in said


def test_without_a_gradient_there_is_no_section(tmp_path):
    frame = run_of(tmp_path).drop(columns="kl_head_mean")
    assert losses_of(frame) is None
    assert loss_section(frame, None) == []


def test_a_table_without_a_folder_gives_only_heads(tmp_path):
    frame = run_of(tmp_path)
    frame.attrs["folders"] = []
    found = losses_of(frame)
    assert "outside a folder" in found.why
    assert found.table.iloc[0]["kl_head"] == 1


def test_damaged_projections_stop_no_page(tmp_path):
    frame = run_of(tmp_path)
    (tmp_path / "projections.h5").write_bytes(b"no HDF5")
    assert "cannot be read" in losses_of(frame).why


def test_predictions_are_compared_with_the_loss_as_another_measure(tmp_path):
    # Predictions equal the losses; the main measure has the opposite order.
    frame = load(planted(tmp_path, six_methods(error_of=lambda loss: 1 - loss)))
    table = frame.drop_duplicates(["label", "budget_tokens"])[
        ["trace_id", "prompt", "label", "budget_tokens"]
    ].assign(layers=3)
    confirmation = confirmed(frame)
    lost = whole_rows(confirmation.losses)[["label", "budget_tokens", "loss_increase"]]
    table = table.merge(lost.rename(columns={"loss_increase": "kl"}), on=["label", "budget_tokens"])
    found = instances_of(frame, confirmation, Losses(table))
    assert best_choice(found).words == "predicted KL, all layers together"
    ranks = correlations(found).set_index(["scope", "target", "measure", "weighting", "prompt"])["spearman"]
    assert ranks["all", "loss_increase", "predicted_kl", "together", ""] == pytest.approx(1)
    assert ranks["all", "loss_increase", "rel_err_out_mean", "mean", ""] == pytest.approx(-1)
    # Predictions for layers other than the compressed ones do not apply.
    assert instances_of(frame, confirmation, Losses(table.assign(layers=2))).together == {}
    assert instances_of(frame, confirmation, Losses(table, why="no file")).together == {}
