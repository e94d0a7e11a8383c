"""Predicted answers by hand: the curve through the masks, the chance of an answer, columns of a run."""

import h5py
import numpy as np
import pandas as pd
import pytest
from kvanalysis.loss.answer import AnswerRecord, AnswerResponse, Chance, answers_in, chance_of, curve_of
from kvanalysis.loss.predicted import predicted
from test_kvanalysis_predict import KEYS, run_of

ANSWER = 8  # its first token, which row 7 predicts
DISTANCES = {"ka": [0.1, 0.2, 0.3, 9], "kb": [0.3, 0.2, 0.5, 9]}


def record(first_order, change, exact=None):
    exact = np.zeros(len(change), np.uint8) if exact is None else np.array(exact, np.uint8)
    return AnswerRecord(-1.0, True, np.array(first_order), np.array(change), exact)


def test_a_loss_is_that_of_the_mask_with_equal_first_order_and_interpolated_between():
    found = curve_of(record([-0.1, -1.6, -0.4], [-2.0, -8.0, -4.0]))
    assert [found.of(size) for size in (0.1, 0.4, 1.6)] == pytest.approx([2, 4, 8])
    assert found.of(0.2) == pytest.approx(np.sqrt(2 * 4))
    # Below the mildest mask proportional; beyond the severest with the slope of the last two, here 1/2.
    assert found.of(0.05) == pytest.approx(1) and found.of(0) == found.of(-1) == 0
    assert found.of(6.4) == pytest.approx(16)


def test_masks_that_disagree_with_their_first_order_are_averaged_or_left_out():
    # The first two are in the wrong order: both cost the geometric mean of 9 and 4.
    found = curve_of(record([-0.1, -0.2, -0.4], [-9.0, -4.0, -16.0]))
    assert [found.of(size) for size in (0.1, 0.2, 0.4)] == pytest.approx([6, 6, 16])
    # Masks without a loss, or without a predicted one, say nothing of the size of losses.
    assert curve_of(record([0.5, -0.5, -0.2], [-3.0, 0.2, -1.0])).of(0.1) == pytest.approx(0.5)
    assert curve_of(record([0.5, -0.5], [-3.0, 0.2])) is None


def test_the_chance_of_an_answer_is_the_most_likely_logistic_curve():
    rng = np.random.default_rng(1)
    x = rng.uniform(-12, 0, 4000)
    exact = rng.random(4000) < 1 / (1 + np.exp(-1.5 * (x + 4)))
    found = chance_of(x, exact)
    assert found.slope == pytest.approx(1.5, rel=0.1)
    assert found.mean - found.odds / found.slope == pytest.approx(-4, abs=0.15)
    assert found.of(-4) == pytest.approx(0.5, abs=0.05) and found.of(-1e6) == 0 and found.of(1e6) == 1
    # Separated answers have a finite curve; without a right or a wrong one it is flat and near their share.
    apart = chance_of([-3.0, -2.0, -1.0, -0.5], [0, 0, 1, 1])
    assert apart.of(-3) < 0.05 and apart.of(-0.5) > 0.95 and apart.of(-1.5) == pytest.approx(0.5, abs=0.1)
    assert chance_of([-3.0, -1.0], [1, 1]).of(-3.0) > 0.95
    assert chance_of([], []) is None


def test_an_answer_that_gains_keeps_its_probability_and_without_masks_it_has_none():
    curve = curve_of(record([-1.0, -2.0], [-3.0, -4.0]))
    response = AnswerResponse(-1.0, curve, Chance(0.0, 2.0, -3.0))
    log_prob, chance = response.of(-1.0)
    assert (log_prob, chance) == pytest.approx((-4, 1 / (1 + np.exp(2))))
    assert response.of(0.25)[0] == response.of(7.0)[0] == -1
    assert np.isnan(AnswerResponse(-1.0).of(-1.0)).all()


def answered_run(folder, masks=True):
    """The run of test_kvanalysis_predict.py on a trace whose prompts have answers."""
    frame = run_of(folder)
    with h5py.File(folder / "trace.h5", "r+") as file:
        for prompt, full in (("p", -0.5), ("q", -1.0)):
            group = file.require_group(f"prompts/{prompt}")
            group.attrs["answer_log_prob"], group.attrs["answer_exact"] = full, 1
            group.attrs["answer_from"] = ANSWER
            if masks:
                group["answer_masked_a"] = np.array([-1.0, -4.0])
                group["answer_masked_logprob"] = np.array([-3.0, -6.0])
                group["answer_masked_exact"] = np.array([1, 0] if prompt == "p" else [0, 0], np.uint8)
    with h5py.File(folder / "projections.h5", "r+") as file:
        for key in KEYS:
            file[f"{key}/a_answer"] = np.array([[0.5, -1.5, 0, 100]], np.float32)
            file[f"{key}/cosine_distance"] = np.array([DISTANCES[key]], np.float32)
    return frame


def test_an_instance_has_the_predicted_answer_of_the_sum_of_its_layers(tmp_path):
    row = predicted(answered_run(tmp_path)).iloc[0]
    # Two layers of 0.5 - 1.5; the last token's row predicts nothing. Masks of 1 and 4 cost 3 and 6.
    assert row["answer_first_order"] == pytest.approx(-2)
    assert row["answer_log_prob_full"] == -0.5
    # Rows 7 and 8 predict the answer: the means of 0.04 and 0.04, and of 0.09 and 0.25.
    assert row["answer_distance"] == pytest.approx((0.04 + 0.17) / 2)
    assert row["answer_log_prob"] == pytest.approx(-0.5 - np.sqrt(3 * 6))
    # The chance is that of both prompts and of their masks.
    expected = chance_of([-0.5, -3.5, -6.5, -1.0, -4.0, -7.0], [1, 1, 0, 1, 0, 0])
    assert row["answer_probability"] == pytest.approx(expected.of(row["answer_log_prob"]))
    assert 0.05 < row["answer_probability"] < 0.95
    assert row["kl"] == predicted(run_of(tmp_path / "without")).iloc[0]["kl"]


def test_without_masks_or_without_an_answer_columns_are_empty(tmp_path):
    row = predicted(answered_run(tmp_path / "a", masks=False)).iloc[0]
    assert row["answer_first_order"] == pytest.approx(-2) and row["answer_log_prob_full"] == -0.5
    assert np.isnan(row[["answer_log_prob", "answer_probability"]].astype(float)).all()
    row = predicted(run_of(tmp_path / "b")).iloc[0]
    assert pd.isna(row[[name for name in row.index if name.startswith("answer")]]).all()


def test_the_error_at_an_answer_needs_no_gradient_of_it(tmp_path):
    frame = answered_run(tmp_path)
    with h5py.File(tmp_path / "trace.h5", "r+") as file:
        del file["prompts/p"].attrs["answer_log_prob"]
    with h5py.File(tmp_path / "projections.h5", "r+") as file:
        for key in KEYS:
            del file[f"{key}/a_answer"]
    row = predicted(frame).iloc[0]
    assert row["answer_distance"] == pytest.approx((0.04 + 0.17) / 2)
    assert np.isnan(row["answer_first_order"])


def test_a_trace_without_answers_predicts_none(tmp_path):
    run_of(tmp_path)
    assert answers_in(tmp_path / "trace.h5") == {}
