"""Methods ranked by predicted nats: the order, a ratio's interval by hand, the ranking without nats."""

import numpy as np
import pandas as pd
import pytest
from kvanalysis import load
from kvanalysis.answer.compare import compare_at
from kvanalysis.errors import ConfigError
from kvanalysis.loss.predicted import Losses, losses_of
from kvanalysis.page.answer import answer_section
from kvanalysis.plots.run import leaderboard
from test_answer import method_rows, row_of
from test_kvanalysis_fake import write_results
from test_kvanalysis_predict import run_of
from test_leaderboard import STREAM, ranked


def losses(frame, why="", **nats):
    """Losses by label, with an interval from half to twice the value."""
    own = frame.drop_duplicates(["label", "budget_tokens"])
    own = own[own["label"].isin(nats)][["trace_id", "prompt", "label", "budget_tokens", "seed"]]
    kl = own["label"].map(nats).astype(float)
    return Losses(own.assign(kl=kl, kl_low=kl / 2, kl_high=kl * 2, layers=6), why)


@pytest.fixture
def frame(tmp_path):
    """Two methods at one budget; tova has the lower error."""
    return load(write_results(tmp_path, method_rows("h2o", 1.5) + method_rows("tova", 1.0)))


def test_the_lowest_nats_rank_first_even_against_the_error(frame):
    answer = compare_at(frame, 0.2, losses=losses(frame, h2o=0.1, tova=0.3))
    assert answer.measure == "nats"
    assert list(answer.ranking["label"]) == ["h2o", "tova"]
    assert row_of(answer, "h2o")[["error", "low", "high"]].tolist() == [0.1, 0.05, 0.2]
    assert compare_at(frame, 0.2, losses=losses(frame, h2o=0.1, tova=0.3), measure="error").best == "tova"


def test_a_ratio_is_tested_on_one_side_and_its_interval_has_two(frame):
    """1.96 times 0.40 is 0.784: exp(0.784) is 2.190, so three times is 1.37 to 6.6 times."""
    tova = row_of(compare_at(frame, 0.2, losses=losses(frame, h2o=0.1, tova=0.3)), "tova")
    assert tova["difference"] == pytest.approx(0.2)
    assert [tova[name] for name in ("ratio", "ratio_low", "ratio_high")] == pytest.approx(
        [3, 3 / 2.1902, 3 * 2.1902], rel=1e-3
    )
    assert tova["p"] == pytest.approx(0.006023 / 2, rel=1e-3)  # one-sided p of ln 3 / 0.40
    assert tova["decided"]
    twice = row_of(compare_at(frame, 0.2, losses=losses(frame, h2o=0.1, tova=0.2)), "tova")
    assert twice["ratio_low"] < 1
    assert (twice["p"], twice["decided"]) == (pytest.approx(0.04157, rel=1e-3), True)  # one-sided


def test_more_methods_need_a_larger_ratio(tmp_path):
    rows = [
        row for i, name in enumerate(("h2o", "tova", "buzz", "window")) for row in method_rows(name, 1 + i)
    ]
    frame = load(write_results(tmp_path, rows))
    answer = compare_at(frame, 0.2, losses=losses(frame, h2o=0.1, tova=0.11, buzz=0.12, window=0.26))
    window = row_of(answer, "window")
    assert window["p"] == pytest.approx(3 * 0.016904 / 2, rel=1e-3)  # three comparisons with the best
    assert window["decided"]
    assert not row_of(answer, "buzz")["decided"]


def test_the_sentence_gives_the_ratio_to_the_next_method(frame):
    answer = compare_at(frame, 0.2, losses=losses(frame, h2o=0.1, tova=0.3))
    assert answer.sentence == (
        "At 20 % of the full cache’s bytes at the peak, h2o has the lowest predicted loss, 0.100 nats a token"
        " [0.0500 … 0.200]; tova, the next, has 3.00 times as much [1.37 … 6.57]; it is significantly worse."
        " Loss predicted from the gradient in the trace over 6 kv heads of 6 layers, 1 text,"
        " SmolLM2-135M-Instruct. Significantly worse: ruled out as the best, with 95 % confidence for all"
        " methods together (multiple comparisons with the best)."
    )
    assert "a lower bound" in answer.caveats[0]
    assert "predicted nats" in str(answer) and "in layers" not in str(answer)
    parts = " ".join(str(part) for part in answer_section(frame, None, losses(frame, h2o=0.1, tova=0.3)))
    assert "<strong>h2o</strong> has the lowest predicted loss" in parts


def test_without_nats_of_every_method_the_distance_ranks_and_nats_are_shown(frame):
    found = losses(frame, h2o=0.1)
    answer = compare_at(frame, 0.2, losses=found)
    assert (answer.measure == "nats", answer.best) == (False, "tova")
    assert row_of(answer, "h2o")["nats"] == pytest.approx(0.1)
    asked = compare_at(frame, 0.2, losses=found, measure="nats")
    assert row_of(asked, "tova")["how"] == "no loss is predicted"
    assert np.isnan(row_of(asked, "tova")["error"])


def test_nats_without_an_interval_do_not_rank(frame):
    found = losses(frame, h2o=0.1, tova=0.3)
    found = Losses(found.table.assign(kl_low=np.nan, kl_high=np.nan))
    answer = compare_at(frame, 0.2, losses=found)
    assert (answer.measure == "nats", answer.best) == (False, "tova")
    assert row_of(answer, "h2o")["nats"] == pytest.approx(0.1)
    assert compare_at(frame, 0.2, losses=found, measure="nats").best == "h2o"


@pytest.mark.parametrize(("found", "message"), [(None, "record the trace with"), ("no file", "no file")])
def test_missing_nats_are_an_error_with_the_reason_if_requested(frame, found, message):
    given = None if found is None else losses(frame, found, h2o=0.1, tova=0.3)
    with pytest.raises(ConfigError, match=f"--measure nats: .*{message}"):
        compare_at(frame, 0.2, losses=given, measure="nats")


def test_a_method_without_cost_is_first_and_all_others_cost_significantly_more(frame):
    answer = compare_at(frame, 0.2, losses=losses(frame, h2o=0.0, tova=1e-9))
    assert answer.best == "h2o"
    assert row_of(answer, "tova")["p"] == 0
    assert "tova, the next, has 1.0e-09 more" in answer.sentence


def test_heads_at_one_share_are_one_instance_even_if_budgets_differ(tmp_path):
    frame = run_of(tmp_path)
    whole = losses_of(frame).table
    asked = frame.assign(budget_tokens=pd.array([6, 10], "Int64"), budget_share="0.2")
    asked.attrs = frame.attrs
    table = losses_of(asked).table
    assert table["budget_tokens"].tolist() == [8]  # their mean
    assert table["kl"].tolist() == pytest.approx(whole["kl"].tolist())
    apart = frame.assign(budget_tokens=pd.array([6, 10], "Int64"))
    apart.attrs = frame.attrs
    assert losses_of(apart).table["layers"].tolist() == [1, 1]


def test_the_leaderboard_ranks_by_nats_ceilings_included(tmp_path, monkeypatch):
    nats = {"h2o": 0.1, "tova": 0.3, "topk_oracle": 0.01}
    monkeypatch.setattr(leaderboard, "losses_of", lambda frame: losses(frame, **nats))
    table = ranked(tmp_path, stream=STREAM)
    assert table["measure"].unique().tolist() == ["nats"]
    assert table["label"].tolist() == ["h2o", "tova", "topk_oracle"]
    assert table["loss"].tolist() == pytest.approx([0.1, 0.3, 0.01])
    assert table["error"].tolist() == pytest.approx([0.2025, 0.1025, 0.0525])
    assert table["decided"].tolist()[:2] == [False, True]
    assert leaderboard.axis_words(table) == "loss predicted from the gradient in the trace [nats a token]"
