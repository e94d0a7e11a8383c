"""Answers of the compressed model: exact matches where they are informative, else ranks."""

import re

import pandas as pd
import pytest
from fake_confirm import ANSWERS, answered, confirm_rows, failed_confirm, planted, six_methods, write_confirm
from kvanalysis import ResultsError
from kvanalysis.data.confirm_csv import read_confirm_csv
from kvanalysis.predict.cells import group_cells, group_words
from kvanalysis.predict.retrieval import retrieval
from kvbase.shares import wilson
from kvreplay.program import main
from test_kvanalysis_report import Page


def groups_of(folder, rows):
    """`retrieval` of rows of confirm.csv; label and oracle flag follow from the method's name."""
    write_confirm(folder, [line for each in rows for line in each])
    frame = read_confirm_csv(folder / "confirm.csv")
    return retrieval(frame.assign(label=frame["method"], oracle=frame["method"] == "static_oracle"))


def four_prompts(ranks, method="h2o", full=(1, 1, 1, 4), kind="lines-0020", **place):
    return [
        answered(of_full, rank, method=method, prompt=f"{kind}-{number:03d}", **place)
        for number, (of_full, rank) in enumerate(zip(full, ranks, strict=True))
    ]


def test_exact_answers_are_counted_over_the_prompts_of_a_group(tmp_path):
    [group] = groups_of(tmp_path, four_prompts((1, 1, 7, 9)))
    assert (group.name, group.n_prompts, group.by_exact) == ("lines-0020", 4, True)
    [row] = group.table.to_dict("records")
    assert (row["exact"], row["exact_full"], row["n_answers"]) == (0.5, 0.75, 4)
    assert (row["rank"], row["rank_full"]) == (4, 1)
    assert (row["logprob"], row["logprob_full"]) == (-0.5 * 4.5, -0.5 * 1.75)
    assert group_words(group).startswith(
        "lines-0020: 4 prompts with an answer; the full model answers 3 of them"
    )
    assert group_cells(group) == (["method", "B = 64"], [[("h2o", "h2o"), ("2/4", 0.5)]])


def test_ranks_are_shown_if_the_full_model_fails_half_of_the_time(tmp_path):
    [group] = groups_of(tmp_path, four_prompts((1, 3, 7, 9), full=(1, 1, 2, 4)))
    assert not group.by_exact
    assert group_cells(group)[1] == [[("h2o", "h2o"), ("5", 5)]]
    assert "no more than 50%" in group_words(group) and "median rank" in group_words(group)


def test_the_best_method_comes_first_and_a_missing_budget_is_a_dash(tmp_path):
    rows = [
        *four_prompts((9, 9, 9, 9), "window"),
        *four_prompts((1, 1, 9, 9), "h2o"),
        *four_prompts((1, 1, 1, 9), "tova", budget=128),
    ]
    [group] = groups_of(tmp_path, rows)
    header, cells = group_cells(group)
    assert header == ["method", "B = 64", "B = 128"]
    assert [[text for text, _ in row] for row in cells] == [
        ["tova", "–", "3/4"],
        ["h2o", "2/4", "–"],
        ["window", "0/4", "–"],
    ]
    by_rank = groups_of(
        tmp_path, four_prompts((5,) * 4, "window", (2,) * 4) + four_prompts((3,) * 4, "h2o", (2,) * 4)
    )
    assert [row[0][0] for row in group_cells(by_rank[0])[1]] == ["h2o", "window"]


def test_budgets_that_are_shares_of_prompts_share_one_column(tmp_path):
    small = [answered(1, 1, prompt="lines-0020-000", budget=b) for b in (10, 51)]
    large = [answered(1, 2, prompt="lines-0020-001", budget=b) for b in (12, 60)]
    [group] = groups_of(tmp_path, small + large)
    n_prefill = confirm_rows()[0]["n_prefill"]
    words = [f"{100 * tokens / n_prefill:.0f} %" for tokens in (11, 55.5)]
    assert group_cells(group) == (["method", *words], [[("h2o", "h2o"), ("1/2", 0.5), ("1/2", 0.5)]])
    assert list(group.table["tokens"]) == [11, 55.5]


def test_an_equal_budget_among_shares_counts_as_a_share(tmp_path):
    rows = [
        answered(1, 1, prompt=f"p-{number}", budget=b) for number, b in ((0, 10), (0, 51), (1, 10), (1, 60))
    ]
    [group] = groups_of(tmp_path, rows)
    assert all(budget.endswith(" %") for budget in group.budgets)


def test_a_method_without_a_budget_has_a_separate_column(tmp_path):
    [group] = groups_of(tmp_path, four_prompts((1, 1, 1, 4), "exact", budget="") + four_prompts((1, 1, 9, 9)))
    header, cells = group_cells(group)
    assert header == ["method", "–", "B = 64"]
    assert [text for text, _ in cells[0]] == ["exact", "3/4", "–"]


def test_groups_are_names_without_their_number_in_order_of_length(tmp_path):
    rows = [
        each
        for kind in ("lines-20", "lines-5-numbers-4", "lines-5")
        for each in four_prompts((1,) * 4, kind=kind)
    ]
    assert [group.name for group in groups_of(tmp_path, rows)] == ["lines-5", "lines-5-numbers-4", "lines-20"]


def test_prompts_whose_names_are_numbers_are_one_group(tmp_path):
    groups = groups_of(tmp_path, [answered(1, 1, prompt=f"{number}") for number in (3, 17)])
    assert [(group.name, group.n_prompts) for group in groups] == [("all prompts", 2)]


def test_seeds_are_separate_answers_and_the_full_model_counts_once_per_prompt(tmp_path):
    rows = [answered(full, rank, prompt=f"p-{number}", seed=seed, method="balancekv")
            for number, full in enumerate((1, 5)) for seed, rank in ((0, 1), (1, 2))]  # fmt: skip
    [group] = groups_of(tmp_path, [*rows, answered(1, 1, prompt="p-0")])
    table = group.table.set_index("label")
    assert (table["n_prompts"]["balancekv"], table["n_answers"]["balancekv"]) == (2, 4)
    assert table["exact"]["balancekv"] == 0.5 and (table["exact_full"] == 0.5).all()


def test_only_recorded_selections_count_and_not_ranges_or_failures(tmp_path):
    rows = [*four_prompts((1, 1, 9, 9)), *four_prompts((1, 1, 1, 1), selection="own")]
    rows.append(failed_confirm(prompt="lines-0020-000", method="tova"))
    [group] = groups_of(tmp_path, rows)
    assert list(group.table["label"]) == ["h2o"] and list(group.table["exact"]) == [0.5]


def test_prompts_without_an_answer_make_no_group(tmp_path):
    assert groups_of(tmp_path, [confirm_rows()]) == []
    [group] = groups_of(tmp_path, [confirm_rows(prompt="story"), *four_prompts((1,) * 4)])
    assert group.n_prompts == 4


@pytest.mark.parametrize(
    ("share", "n", "low", "high"), [(0, 10, 0, 0.2775), (0.5, 10, 0.2366, 0.7634), (1, 4, 0.5101, 1)]
)
def test_the_interval_of_a_share_is_wilsons(share, n, low, high):
    assert wilson(share, n) == pytest.approx((low, high), abs=1e-4)


def test_an_answer_that_is_no_number_is_refused(tmp_path):
    rows = answered(1, 1)
    rows[0]["answer_rank"] = "first"
    with pytest.raises(ResultsError, match="row 1, column answer_rank: 'first' is not a finite number"):
        groups_of(tmp_path, [rows])


# A whole folder


@pytest.fixture
def folder(tmp_path):
    """Results of six methods on two prompts with answers."""
    planted(tmp_path, six_methods(), prompts=("lines-0020-000", "lines-0020-001"))
    frame = read_confirm_csv(tmp_path / "confirm.csv")
    text = (tmp_path / "confirm.csv").read_text().splitlines()
    rows = [dict(zip(text[0].split(","), line.split(","), strict=True)) for line in text[1:]]
    assert len(rows) == len(frame)
    answer = answered(1, 1)[0]
    told = {name: answer[name] for name in ANSWERS}
    whole = [
        row | told if row["distance_from"] == "0" and row["distance_to"] != "16" else row for row in rows
    ]
    return write_confirm(tmp_path, whole)


def test_the_command_prints_a_table_for_each_group_and_writes_a_file(folder, capsys):
    assert main(["confirm", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "\nlines-0020: 2 prompts with an answer" in printed.out
    assert re.search(r"\nsnapkv +2/2 +2/2\n", printed.out)
    table = pd.read_csv(folder / "confirm_retrieval.csv")
    assert len(table) == 12 and (table["exact_low"] < 1).all() and set(table["group"]) == {"lines-0020"}
    assert str(folder / "confirm_retrieval.csv") in printed.err


def test_methods_that_are_chosen_away_have_no_answers(folder, capsys):
    assert main(["confirm", str(folder), "--without", "snapkv"]) == 0
    lines = capsys.readouterr().out.split("with an answer")[1].splitlines()
    assert len(lines) == 1 + 1 + 5 and not any(line.startswith("snapkv") for line in lines)


def test_the_page_shows_the_answers(folder, monkeypatch):
    monkeypatch.setattr("kvanalysis.page.report.write_figures", lambda *_, **__: [])
    assert main(["report", str(folder)]) == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    Page(text)
    assert "Does it still find the answer?" in text and "2/2" in text


def test_results_without_answers_have_no_table_of_them(tmp_path, capsys):
    planted(tmp_path, six_methods())
    assert main(["confirm", str(tmp_path)]) == 0
    assert "with an answer" not in capsys.readouterr().out
    assert not (tmp_path / "confirm_retrieval.csv").exists()
