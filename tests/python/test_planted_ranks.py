"""A method that evicts one needed token ranks behind a method with small errors everywhere, by the default
measure but not by the mean relative error."""

import kvreplay as kv
import numpy as np
import pandas as pd
import pytest
from kvanalysis.answer.measures import column_of

T, PROMPT, D, NEEDLE, NEEDED = 192, 128, 16, 40, 2  # NEEDED rows query the needle


def planted(seed=0):
    """q, k, v of one head: most decode rows attend to all tokens equally, NEEDED rows only to the needle,
    which has a unique value."""
    rng = np.random.default_rng(seed)
    q, k = (0.3 * rng.standard_normal((1, T, D)) for _ in "qk")
    v = 1 + 0.6 * rng.standard_normal((1, T, D))
    k[0, NEEDLE] = 0
    k[0, NEEDLE, 0] = 12
    q[..., 0] = 0
    v[0, NEEDLE] = 4 * np.where(np.arange(D) % 2, 1.0, -1.0)
    q[0, PROMPT + 8 : PROMPT + 8 + NEEDED, 0] = 12
    return [x.astype(np.float32) for x in (q, k, v)]


@kv.scorer()
def loses_the_needle(prompt):
    scores = np.ones((1, PROMPT))
    scores[0, NEEDLE] = 0
    return scores


@kv.scorer()
def keeps_the_needle(prompt):
    """Scores tokens at random, and the needle highest."""
    scores = np.random.default_rng(1).random((1, PROMPT))
    scores[0, NEEDLE] = 2
    return scores


@pytest.fixture(scope="module")
def table():
    q, k, v = planted()
    runs = [
        kv.replay(q, k, v, prefill=PROMPT, methods=[method], budgets=[budget]).table
        for method, budget in ((loses_the_needle, PROMPT - 1), (keeps_the_needle, 16))
    ]
    return {run["method"].iloc[0]: run.iloc[0] for run in runs}


def test_a_lost_needle_ruins_a_few_rows_and_no_others(table):
    lost, kept = table["loses_the_needle"], table["keeps_the_needle"]
    assert lost["rel_err_out_p50"] < 0.05 < kept["rel_err_out_p50"]
    assert lost["rel_err_out_max"] > 0.9 and kept["rel_err_out_max"] < 0.6


def test_the_default_measure_ranks_the_lost_needle_last_and_the_mean_error_first(table):
    lost, kept = table["loses_the_needle"], table["keeps_the_needle"]
    assert lost["rel_err_out_mean"] < kept["rel_err_out_mean"]
    assert column_of(pd.DataFrame([lost, kept]).infer_objects(), None) == "cosine_distance_sq"
    assert lost["cosine_distance_sq"] > 10 * kept["cosine_distance_sq"]
