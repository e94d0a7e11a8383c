"""Predicted losses by hand: second-order estimates, the response to masks, and the table of a run."""

import h5py
import numpy as np
import pandas as pd
import pytest
from kvanalysis.data.meta import Meta
from kvanalysis.errors import ResultsError
from kvanalysis.loss.estimate import by_blocks, by_row, interval, label_noise, whole
from kvanalysis.loss.predicted import predicted
from kvanalysis.loss.response import Curve, response_of

A = np.array([[1.0, 3.0], [1.0, -3.0], [2.0, 0.0]])  # three rows, two samples


def test_pairs_of_rows_count_within_their_block_alone():
    # Rows: (1 + 9)/2 + (1 + 9)/2 + (4 + 0)/2 = 12; half of that, divided by three rows.
    assert by_row(A) == pytest.approx(2)
    # Blocks of two: sums (2, 0) and (2, 0).
    assert by_blocks(A, 2) == pytest.approx((4 / 2 + 4 / 2) / 6)
    assert whole(A) == pytest.approx(16 / 2 / 6)


def test_the_noise_of_labels_is_that_of_the_samples_own_sums():
    # Sums of squares 6 and 18 of two samples: mean 12, standard deviation 8.485.
    assert label_noise(A) == pytest.approx(np.sqrt(72) / np.sqrt(2) / 12)
    assert np.isnan(label_noise(A[:, :1]))
    # Student's t at 97.5 %: 12.7062 with one degree of freedom, 2.3646 with seven.
    width = np.hypot(0.03 * 12.7062, 0.4 * 2.3646)
    low, high = interval(2.0, (0.03, 1), (0.4, 7))
    assert (low, high) == pytest.approx((2 * np.exp(-width), 2 * np.exp(width)), rel=1e-4)


def test_the_response_to_masks_is_interpolated_and_extrapolated_without_steeper_bends():
    found = Curve(np.array([0.1, 0.4, 1.6]), np.array([0.2, 0.4, 0.8]))
    assert found.of(0.4, 9) == pytest.approx(0.4)
    assert found.of(0.2, 9) == pytest.approx(np.sqrt(0.2 * 0.4))
    assert found.of(6.4, 9) == pytest.approx(1.6)
    steep = Curve(np.array([0.1, 0.2]), np.array([0.1, 0.8]))
    assert steep.of(0.4, 9) == pytest.approx(1.6)


def test_an_error_far_below_the_mildest_mask_costs_its_second_order():
    found = Curve(np.array([0.1, 0.4]), np.array([0.2, 0.4]))
    assert found.of(0, 0) == 0
    assert found.of(1e-6, 1.3e-6) == pytest.approx(1.3e-6, rel=1e-4)
    # Half of the mildest size: the mean of the masks' 0.1 and the blocks' 0.06.
    assert found.of(0.05, 0.06) == pytest.approx(0.08)
    assert found.of(0.1, 9) == pytest.approx(0.2)


def classes(**more):
    """32 rows of two classes: the first half are certain, and cost four times their second-order estimate."""
    kl = np.where(np.arange(32) < 16, 4.0, 1.0)
    return {
        "masked_a": np.ones((2, 32, 1)) * np.array([1.0, 2.0])[:, None, None],  # row estimates 0.5 and 2
        "masked_kl_rows": np.stack([0.5 * kl, 2 * kl]).astype(np.float32),
        "masked_kl": np.array([1.25, 5.0], np.float32),
        "g_entropy": np.linspace(0, 3, 32, dtype=np.float32),
        **more,
    }


def written(path, datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[f"prompts/p/{name}"] = values
    return path


def test_rows_with_certain_predictions_have_a_separate_response_curve(tmp_path):
    found = response_of(written(tmp_path / "t.h5", classes()), "p")
    rows = np.arange(32)
    certain, uncertain = (np.where(half, 2.0, 0)[:, None] for half in (rows < 16, rows >= 16))
    # Half of the rows have estimates of 2: by their class's curve they cost 8, or 2; the others cost 0.
    assert found.of(certain, rows) == pytest.approx(4)
    assert found.of(uncertain, rows) == pytest.approx(1)
    # Only half of the certain rows, as in a replay of a longer prompt.
    assert found.of(np.full((8, 1), 2.0), rows[8:16]) == pytest.approx(8)
    old = classes()
    del old["masked_kl_rows"]
    assert response_of(written(tmp_path / "old.h5", old), "p").of(certain, rows) == pytest.approx(2.5)


def test_a_class_costs_the_geometric_mean_of_gradient_and_distance_estimates(tmp_path):
    distances = np.ones((2, 32), np.float32) * np.array([[0.1], [0.4]], np.float32)
    found = response_of(written(tmp_path / "t.h5", classes(masked_distance2=distances)), "p")
    rows, a = np.arange(32), np.full((32, 1), 2.0)
    # The gradient predicts the cost of the severe mask, 8 and 2; the distance that of the mild one, 2 and
    # 0.5.
    assert found.of(a, rows, np.full(32, 0.1)) == pytest.approx((4 + 1) / 2)
    assert found.of(a, rows, np.full(32, 0.4)) == pytest.approx((8 + 2) / 2)
    # Below the mildest mask, costs are proportional to the distance; without distances only the gradient
    # counts.
    assert found.of(a, rows, np.full(32, 0.025)) == pytest.approx((2 + 0.5) / 2)
    assert found.of(a, rows) == pytest.approx((8 + 2) / 2)


KEYS = ("ka", "kb")


def run_of(folder, with_masks=True, recorded=True):
    """Writes the files of a run of one method on two layers of a trace; returns its table."""
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "trace.h5", "w") as file:
        group = file.create_group("prompts/p")
        if with_masks:
            group["masked_a"] = np.full((3, 3, 2), [[[1.0]], [[2.0]], [[3.0]]])  # row estimates 0.5, 2, 4.5
            group["masked_kl"] = np.array([1.0, 2.0, 2.5], dtype=np.float32)
    with h5py.File(folder / "projections.h5", "w") as file:
        for key in KEYS:
            a = np.concatenate([A, [[0, 0]]])[None] / 2  # a row for the last token, which has no target
            file[f"{key}/a"], file[f"{key}/rows"] = a.astype(np.float32), np.array([6, 7, 8, 9], np.int32)
            if recorded:
                file[f"{key}/a_recorded"] = np.array([[1, -2, -5, 100]], np.float32)
    frame = pd.DataFrame({"key": KEYS, "layer": [0, 1], "kl_head_mean": [0.5, 0.5]}).assign(
        trace_id="t", prompt="p", method="snapkv", label="snapkv", given_json="{}", params="{}",
        budget_tokens=8, seed=np.nan, n_tokens=10, status="ok", oracle=False,
    )  # fmt: skip
    frame.attrs["meta"] = Meta({"traces": [{"trace_id": "t", "path": str(folder / "trace.h5")}]})
    frame.attrs["folders"] = [str(folder)]
    return frame


def test_an_instance_is_the_models_response_to_the_sum_of_its_layers(tmp_path):
    row = predicted(run_of(tmp_path)).iloc[0]
    assert row["kl_row"] == pytest.approx(2)
    assert row["kl"] == pytest.approx(2)  # measured for the mask with equal row estimates
    # Noise of samples: 0.5 with one degree of freedom; spread of methods: 0.3, normal, hence 1.96.
    width = np.hypot(0.5 * 12.7062, 0.3 * 1.95996)
    assert row["kl_low"] == pytest.approx(2 * np.exp(-width), rel=1e-4)
    assert row["kl_high"] == pytest.approx(2 * np.exp(width), rel=1e-4)
    assert (row["kl_head"], row["layers"], row["n_rows"]) == (1, 2, 3)
    # Two layers of 1 - 2 - 5 = -6: the log-likelihood falls by 12, over three rows.
    assert row["loss_first_order"] == pytest.approx(4)


def test_cells_of_two_versions_are_not_summed(tmp_path):
    frame = run_of(tmp_path)
    with h5py.File(tmp_path / "projections.h5", "r+") as file:
        file["ka/cosine_distance"] = np.zeros((1, 4), np.float32)
    with pytest.raises(
        ResultsError, match="cell kb lacks cosine_distance: it was written by an older version"
    ):
        predicted(frame)


def test_without_the_gradient_of_the_recorded_tokens_their_loss_is_missing(tmp_path):
    row = predicted(run_of(tmp_path, recorded=False)).iloc[0]
    assert np.isnan(row["loss_first_order"])
    assert row["kl_row"] == pytest.approx(2)


def test_without_masked_runs_only_the_second_order_remains_without_an_interval(tmp_path):
    row = predicted(run_of(tmp_path, with_masks=False)).iloc[0]
    assert row["kl"] == row["kl_block"]
    assert np.isnan(row["kl_low"])
    assert response_of(tmp_path / "trace.h5", "p") is None


def test_a_run_without_a_gradient_is_refused_with_the_recording_command(tmp_path):
    frame = run_of(tmp_path).drop(columns="kl_head_mean")
    with pytest.raises(ResultsError, match="kvreplay record --with-gradient"):
        predicted(frame)


def test_an_instance_with_a_failed_head_is_left_out_and_not_summed_over_the_others(tmp_path):
    frame = run_of(tmp_path)
    frame.loc[1, "status"] = "failed"
    with pytest.raises(ResultsError, match="no instance without a failed cell"):
        predicted(frame)
    whole = run_of(tmp_path / "whole").assign(budget_tokens=16)
    table = predicted(pd.concat([frame, whole], ignore_index=True).pipe(with_attrs, whole))
    assert list(table["budget_tokens"]) == [16]


def with_attrs(frame, like):
    frame.attrs = like.attrs
    return frame
