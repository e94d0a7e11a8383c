"""Written answers: accuracy by task, which number predicts it, and which methods differ."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake_confirm import planted, written
from kvanalysis import ResultsError, load
from kvanalysis.data.arrays import held_by_some
from kvanalysis.data.confirmed import confirmed
from kvanalysis.loss.predicted import Losses
from kvanalysis.page.confirm_details import answered as section
from kvanalysis.plots.confirm import accuracy
from kvanalysis.predict.answer_cells import accuracy_cells, predictor_cells, recommendation
from kvanalysis.predict.answer_tests import answer_tests
from kvanalysis.predict.answers import answer_correlations, answer_points, answer_rows
from kvanalysis.predict.needle_mass import needle_masses
from kvanalysis.predict.retrieval import retrieval
from kvreplay.program import main
from test_kvanalysis_fake import TRACE

METHODS = ("adakv", "h2o", "knorm", "snapkv", "tova", "window")
PROMPTS = [f"niah-{number:04d}" for number in range(8)]


def write(folder, right, prompts=PROMPTS, full=1.0, budgets=(64, 128)):
    """Results whose main error rises with the method's number. right(method's number, budget's place,
    prompt's number): the score of its answer."""
    cells, scores = {}, {}
    for number, method in enumerate(METHODS):
        for place, budget in enumerate(budgets):
            error = 0.1 * (1 + number) + 0.01 * (1 - place)
            cells[method, budget] = (error, {"rel_err_out_mean": error, "cosine_mean": 1 - error**2})
            for n, prompt in enumerate(prompts):
                scores[method, budget, prompt] = right(number, place, n)
    planted(folder, cells, prompts)
    return written(folder, scores, full)


def rows_of(folder):
    frame = load(folder)
    return answer_rows(frame, confirmed(frame))


def falling(number, place, n):
    """The method of this number answers all prompts from its number on."""
    return float(n >= number)


def test_accuracy_is_the_mean_score_over_prompts(tmp_path):
    rows = rows_of(write(tmp_path, falling))
    points = answer_points(rows).set_index(["method", "place"])
    assert len(points) == 12 and set(points["n_prompts"]) == {8}
    assert points["wrong"].xs(0, level="place").to_dict() == {m: i / 8 for i, m in enumerate(METHODS)}
    assert set(rows["wrong_full"]) == {0.0}


def test_a_predictor_that_orders_methods_like_wrong_answers_has_correlation_one(tmp_path):
    table = answer_correlations(rows_of(write(tmp_path, falling)))
    whole = table[(table["group"] == "") & (table["scope"] == "equal budgets")].set_index("predictor")
    assert whole["spearman"]["rel_err_out_mean"] == pytest.approx(1)
    assert whole["spearman"]["cosine_distance"] == pytest.approx(1)
    assert (whole["n_points"] == 12).all() and (whole["n_methods"] == 6).all()
    assert "predicted_kl" not in whole.index  # unknown here


def test_a_predictor_that_orders_the_other_way_has_correlation_minus_one(tmp_path):
    table = answer_correlations(rows_of(write(tmp_path, lambda number, place, n: float(n < 2 + number))))
    whole = table[(table["group"] == "niah") & (table["scope"] == "equal budgets")].set_index("predictor")
    assert whole["spearman"]["rel_err_out_mean"] == pytest.approx(-1)
    assert whole["low"]["rel_err_out_mean"] == pytest.approx(-1)


def test_all_tasks_are_the_mean_over_tasks_and_a_task_the_full_model_fails_is_left_out(tmp_path):
    prompts = [f"{task}-{n:04d}" for task in ("one", "two", "three") for n in range(8)]

    def right(number, place, n):
        task, n = divmod(n, 8)
        return float(n >= number) if task == 0 else float(n < 2 + number)

    full = {prompt: float(not prompt.startswith("three")) for prompt in prompts}
    table = answer_correlations(rows_of(write(tmp_path, right, prompts, full)))
    own = table[(table["predictor"] == "rel_err_out_mean") & (table["scope"] == "equal budgets")]
    assert own.set_index("group")["spearman"].to_dict() == pytest.approx({"one": 1, "two": -1, "": 0})


def test_oracles_rank_no_method(tmp_path):
    rows = rows_of(write(tmp_path, falling))
    seeing = rows.assign(oracle=rows["label"] == "window")
    assert set(answer_points(rows)["label"]) - set(answer_points(seeing)["label"]) == {"window"}
    assert "window" not in set(answer_tests(seeing)["label"])


def test_methods_that_answer_alike_are_not_decided(tmp_path):
    def right(number, place, n):
        return {0: 1.0, 5: 0.0}.get(number, float(n != number))

    tests = answer_tests(rows_of(write(tmp_path, right))).set_index(["place", "label"])
    assert set(tests["best"]) == {"adakv"}
    assert tests["decided"][0, "window"] and tests["p"][0, "window"] == 0
    assert not tests["decided"][0, "h2o"] and tests["difference"][0, "h2o"] == -1 / 8
    # Differences 7 x 0 and -1: mean -1/8 with standard error 1/8, so t = -1 at 7 degrees of freedom and
    # p = 0.3506; Holm counts the four such methods.
    assert tests["p"][0, "h2o"] == pytest.approx(min(1, 4 * 0.3506), abs=1e-3)
    assert np.isnan(tests["p"][0, "adakv"])


def test_answers_of_different_lengths_do_not_compare(tmp_path):
    losses = confirmed(load(write(tmp_path, falling))).losses
    written = losses["answer_limit"].notna()
    losses.loc[losses[written].index[:3], "answer_limit"] = 4
    with pytest.raises(ResultsError, match="answers to prompt niah-0000 of at most 4 and 32 tokens"):
        retrieval(losses)


def test_groups_show_scores_instead_of_exact_answers(tmp_path):
    frame = load(write(tmp_path, falling, full=0.75))
    [group] = retrieval(confirmed(frame).losses)
    assert (group.is_written, group.is_ranked, group.by_exact) == (True, True, False)
    assert group.table.set_index("label")["correct"]["h2o"].iloc[0] == 7 / 8
    assert group.table["correct_full"].iloc[0] == 0.75


def test_a_table_names_the_best_predictor_and_the_simplest_one_within_its_interval(tmp_path):
    rows = rows_of(write(tmp_path, falling))
    table = answer_correlations(rows)
    header, cells = predictor_cells(table)
    assert header == ["predictor", "needs", "all tasks", "95 % interval", "niah"]
    assert {row[0][1] for row in cells} >= {"rel_err_out_mean", "cosine_distance", "kl_mean"}
    assert recommendation(table).startswith("Best predictor of wrong answers: relative error, mean, rank")
    header, cells = accuracy_cells(answer_tests(rows), "niah")
    assert [text for text, _ in cells[0]] == ["1", "adakv", "100.0 %", "best", "–", "–"]
    assert section(rows)


def test_the_command_prints_scores_and_predictors_and_writes_both_tables(tmp_path, capsys):
    write(tmp_path, falling)
    assert main(["confirm", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "niah: 8 prompts; the full model scores 100.0 %" in out
    assert "Best predictor of wrong answers" in out
    assert (tmp_path / "answers.csv").read_text().count("\n") == 13
    assert (tmp_path / "answer_correlations.csv").is_file()


def test_a_figure_shows_the_score_over_the_bytes_of_each_task(tmp_path):
    frame = load(write(tmp_path, falling))
    table = accuracy.data(SimpleNamespace(rows=frame, losses=None))
    assert len(table) == 12
    row = table[(table["label"] == "knorm") & (table["place"] == 0)].iloc[0]
    assert (row["accuracy"], row["n"]) == (0.75, 8)
    assert row["low"] == pytest.approx(0.4093, abs=1e-4) and row["high"] == pytest.approx(0.9285, abs=1e-4)
    assert accuracy.data(SimpleNamespace(rows=frame.iloc[:0].copy(), losses=None)) is None


def test_the_figure_names_the_smallest_of_the_methods_that_answer_most():
    rows = [("h2o", 0.7, 1.0, False), ("tova", 0.5, 1.0, False), ("window", 0.4, 0.9, False)]
    columns = ["label", "bytes_share", "accuracy", "oracle"]
    table = pd.DataFrame([*rows, ("static_oracle", 0.1, 1.0, True)], columns=columns)
    run = SimpleNamespace(styles={})
    [drawn] = accuracy.draw(run, table.assign(group="niah", accuracy_full=1.0, n=8))
    assert "most of a method 100.0 % (tova at 50.0 % of the bytes)" in drawn.caption


def test_a_token_counts_as_held_if_one_head_holds_it(tmp_path):
    import h5py

    with h5py.File(tmp_path / "kept.h5", "w") as file:
        for key, tokens in (("a", [0, 5, 9]), ("b", [1, 6])):
            group = file.create_group(key)
            group["kept_flat"], group["kept_off"] = [*tokens, 5, 6, 7, 8], [0, len(tokens), len(tokens) + 4]
    share = held_by_some(tmp_path / "kept.h5", ["a", "b"], [[5, 7], [8, 10]])
    assert share == 3 / 4  # 5, 6 and 9; later lists do not count
    assert np.isnan(held_by_some(tmp_path / "kept.h5", ["a", "c"], [[5, 7]]))


def test_predicted_losses_stand_beside_the_measured_ones(tmp_path):
    """The table of predicted losses holds the measured KL, too."""
    frame = load(write(tmp_path, falling))
    point = {"trace_id": TRACE, "prompt": PROMPTS[0], "label": "h2o", "budget_tokens": 64}
    table = pd.DataFrame([point | {"kl": 0.7, "kl_mean": 0.1}])
    table["budget_tokens"] = table["budget_tokens"].astype("Int64")
    rows = answer_rows(frame, confirmed(frame), Losses(table))
    own = rows[(rows["label"] == "h2o") & (rows["budget_tokens"] == 64)].set_index("prompt")
    assert own["predicted_kl"][PROMPTS[0]] == 0.7 and np.isnan(own["predicted_kl"][PROMPTS[1]])
    assert (own["kl_mean"] > 0).all()


def layer(**changes):
    """Two query heads of one kv head over three tokens, of which the last is behind the prompt: logits 0,
    log 2 and 0, and then twice as far apart."""
    facts = {
        "q": np.array([[[1.0]], [[2.0]]]),
        "k": np.array([[[0.0], [np.log(2)], [0.0]]]),
        "q_pos": np.array([2]),
        "n_q_heads": 2,
        "n_kv_heads": 1,
        "group": 2,
    }
    usual = {"scaling": 1.0, "softcap": 0.0, "sliding_window": 0, "attention_chunk": 0, "sinks": None}
    return SimpleNamespace(layers=[5], n_prompt=2, layer=lambda _: SimpleNamespace(**facts | usual | changes))


@pytest.mark.parametrize(
    ("changes", "masses"),
    [
        ({}, (2 / 4, 4 / 6)),
        ({"sliding_window": 2}, (2 / 3, 4 / 5)),
        ({"attention_chunk": 2}, (0, 0)),  # token 2 begins a chunk
        ({"sinks": np.log([4.0, 2.0])}, (2 / 8, 4 / 8)),
    ],
)
def test_the_mass_on_a_needle_is_that_of_the_exact_attention(changes, masses):
    assert needle_masses(layer(**changes), [[1, 2]]) == pytest.approx({(5, 0): np.mean(masses)})
