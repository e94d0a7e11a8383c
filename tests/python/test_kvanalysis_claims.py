"""Claims: rules over a run's table, their missing inputs, and claims without a test."""

from itertools import chain

import pytest
from kvanalysis import load
from kvanalysis.page.claims import NOT_PROMISED, Claim, by_paper, counts_table
from kvanalysis.page.provenance import data_text
from kvanalysis.page.run_claims import claims_section
from kvanalysis.page.run_rules import RULES, Missing, run_claims
from kvanalysis.page.untestable import untestable_claims
from kvanalysis.stats.summary import summarise
from kvanalysis.stats.verdict import FAILS, HOLDS, MIXED, OUTCOMES, RULE, UNDECIDED, UNTESTABLE
from test_kvanalysis_fake import COLUMNS, fake_row, fake_rows, write_results

SINKS = "A few first tokens (sinks) rescue the window"
BOTH = "Heavy hitters and recent tokens together have a lower error than either alone"
FALLS = "A larger budget never raises the error"
GREEDY = "The greedy cache holds at least 1 − 1/e of the mass that the best tokens of a row would"


def cells(method, errors, budget=64, phase="stream", **changes):
    """One row per layer, with `errors` in order."""
    at = {"budget": budget, **changes}
    return [
        fake_row(method, {"phase": phase}, layer=layer, rel_err=e, **at) for layer, e in enumerate(errors)
    ]


def around(mean):
    """Errors of five layers with this mean and a standard deviation of 0.01."""
    return [mean + 0.01 * step for step in (-1, -1, 0, 1, 1)]


def ruled(frame):
    """Applies every rule; returns ([Claim], [Missing])."""
    return run_claims(frame, summarise(frame))


def judged(folder, rows):
    """Applies every rule; returns {claim: Claim or Missing}."""
    decided, missing = ruled(load(write_results(folder, rows)))
    return {one.claim: one for one in [*decided, *missing]}


def test_sinks_help_the_window_if_the_layers_agree(tmp_path):
    # Differences -0.3 to -0.7: mean -0.5, plus or minus 2.776 sqrt(0.025 / 5) = 0.196.
    window, sinks = [0.8, 0.9, 1.0, 1.1, 1.2], [0.5] * 5
    found = judged(tmp_path, cells("window", window) + cells("streaming_llm", sinks))[SINKS]
    assert found.outcome == HOLDS
    assert "B=64: 0.5 against 1 [-0.7, -0.3], 5/0/0" in found.numbers
    assert found.data == "5 kv heads of 5 layers, 1 text, SmolLM2-135M-Instruct, 256 decode rows each"


def test_a_claim_is_tested_at_the_share_at_which_methods_hold_different_numbers_of_tokens(tmp_path):
    rows = cells("window", [0.8, 0.9, 1.0, 1.1, 1.2], 64, budget_share="0.2")
    rows += cells("streaming_llm", [0.5] * 5, 61, budget_share="0.2")
    decided, _ = ruled(load(write_results(tmp_path, rows, columns=[*COLUMNS, "budget_share"])))
    [found] = [one for one in decided if one.claim == SINKS]
    assert found.outcome == HOLDS
    assert "20 %: 0.5 against 1 [-0.7, -0.3], 5/0/0" in found.numbers


def test_a_contradicted_claim_fails_and_an_interval_across_zero_is_undecided(tmp_path):
    worse = judged(tmp_path / "a", cells("window", around(0.5)) + cells("streaming_llm", around(1.0)))
    assert worse[SINKS].outcome == FAILS
    crossing = cells("window", [0.5] * 5) + cells("streaming_llm", [1.0, 0.1, 1.0, 0.1, 0.5])
    assert judged(tmp_path / "b", crossing)[SINKS].outcome == UNDECIDED


def test_budgets_that_contradict_each_other_are_mixed(tmp_path):
    rows = cells("window", around(1.0)) + cells("streaming_llm", [0.5] * 5)
    rows += cells("window", [0.5] * 5, budget=128) + cells("streaming_llm", around(0.9), budget=128)
    found = judged(tmp_path, rows)[SINKS]
    assert found.outcome == MIXED
    assert f"in 2 comparisons: {RULE}" in found.how


def test_both_must_beat_each_of_the_two(tmp_path):
    rows = cells("h2o", [0.2] * 5) + cells("h2o_heavy", around(0.4)) + cells("local", around(0.1))
    found = judged(tmp_path, rows)[BOTH]
    assert found.outcome == MIXED
    assert "h2o against h2o_heavy" in found.numbers
    assert "h2o against local" in found.numbers


def test_a_run_without_the_methods_says_which_it_needs(tmp_path):
    found = judged(tmp_path, cells("h2o", [0.2] * 5) + cells("local", [0.4] * 5))[BOTH]
    assert found == Missing("H2O", BOTH, found.source, "needs a plain h2o_heavy")


def test_a_cache_that_grows_is_not_compared_with_one_that_does_not(tmp_path):
    rows = cells("window", [1.0, 1.2]) + cells("streaming_llm", [0.5, 0.6], phase="oneshot")
    found = judged(tmp_path, rows)[SINKS]
    assert found.why == "streaming_llm runs as oneshot, window as stream: equal budgets are not equal sizes"


def test_several_instances_of_a_method_decide_no_claim(tmp_path):
    rows = cells("window", [1.0, 1.2])
    rows += [
        fake_row("streaming_llm", {"phase": "stream", "sinks": sinks}, kv_head=head, rel_err=0.5)
        for sinks in (2, 4)
        for head in range(2)
    ]
    assert judged(tmp_path, rows)[SINKS].why == "needs a plain streaming_llm"


@pytest.mark.parametrize(
    "rows",
    [
        cells("window", around(1.0)[:4]) + cells("streaming_llm", around(0.5)[:4]),
        cells("window", around(1.0), budget=64) + cells("streaming_llm", around(0.5), budget=128),
        cells("window", around(1.0), budget=768) + cells("streaming_llm", around(0.5), budget=768),
    ],
    ids=["four layers", "no budget in common", "a budget that evicts nothing"],
)
def test_unpaired_results_are_undecided(tmp_path, rows):
    found = judged(tmp_path, rows)[SINKS]
    assert found.why == "streaming_llm and window share no budget with results on 5 layers"


def test_an_error_that_rises_with_the_budget_is_flagged_as_no_papers_claim(tmp_path):
    rows = cells("tova", [0.2, 0.2], budget=64) + cells("tova", [0.3, 0.3], budget=128)
    rows += cells("h2o", [0.4, 0.4], budget=64) + cells("h2o", [0.3, 0.3], budget=128)
    found = judged(tmp_path, rows)[FALLS]
    assert (found.paper, found.outcome) == (NOT_PROMISED, MIXED)
    assert found.numbers.startswith("rises at 1 of 2 steps: tova at 128: error rises by 0.1")


def test_one_budget_decides_nothing_about_larger_ones(tmp_path):
    assert judged(tmp_path, cells("tova", [0.2, 0.2]))[FALLS].why == "needs a method at two budgets"


def test_the_greedy_line_counts_heads_below_it(tmp_path):
    rows = [fake_row("h2o", kv_head=head, mass_recall=value) for head, value in enumerate((0.7, 0.9, 0.5))]
    found = judged(tmp_path, rows)[GREEDY]
    assert found.outcome == MIXED
    assert found.numbers == "2 of 3 cells at or above 0.632; mean 0.700, lowest 0.500"


@pytest.mark.parametrize(("held", "outcome"), [((1, 1), HOLDS), ((0, 0), FAILS), ((1, 0), MIXED)])
def test_a_bound_holds_in_all_cells_or_not(tmp_path, held, outcome):
    rows = [fake_row("subgen_stream", budget="", kv_head=h, bound_holds=b) for h, b in enumerate(held)]
    found = judged(tmp_path, rows)
    assert found["The error stays within ε‖x‖₂‖V‖_op"].outcome == outcome


def bounded(folder, **extra):
    """The rule's verdict on two heads with shares of 0.995 and 0.98 of rows within the bound."""
    rows = [
        fake_row("subgen_stream", budget="", kv_head=h, bound_holds=b) | {k: v[h] for k, v in extra.items()}
        for h, b in enumerate((0.995, 0.98))
    ]
    frame = load(write_results(folder, rows, columns=[*COLUMNS, *extra]))
    return next(one for one in chain(*ruled(frame)) if one.claim == "The error stays within ε‖x‖₂‖V‖_op")


def test_a_bound_is_compared_with_its_probability(tmp_path):
    found = bounded(tmp_path, bound_probability=(0.99, 0.99), bound_capped=(0, 0))
    assert found.outcome == MIXED
    assert found.numbers == "1 of 2 cells, lowest share 0.980; 0 capped cells left out"


def test_a_capped_cell_is_not_covered_by_the_theorem(tmp_path):
    found = bounded(tmp_path / "one", bound_probability=(0.99, 0.99), bound_capped=(0, 1))
    assert (found.outcome, found.numbers[:14]) == (HOLDS, "1 of 1 cell, l")
    assert "guarantees nothing" in bounded(tmp_path / "both", bound_capped=(1, 1)).why


def test_every_rule_answers_on_a_whole_run_and_on_one_row(tmp_path):
    for name, rows in (("whole", fake_rows()), ("one", [fake_row()])):
        decided, missing = ruled(load(write_results(tmp_path / name, rows)))
        assert len(decided) + len(missing) == len(RULES)
        assert {claim.outcome for claim in decided} <= set(OUTCOMES)
        assert all(claim.how and claim.numbers and claim.data for claim in decided)


def test_no_two_rules_state_the_same_claim():
    assert len({(rule.paper, rule.claim) for rule in RULES}) == len(RULES)


def test_untested_claims_give_the_reason():
    claims = untestable_claims()
    assert {claim.paper for claim in claims} == {"SubGen", "H2O", "BUZZ", "BalanceKV"}
    assert {claim.outcome for claim in claims} == {UNTESTABLE}
    assert all(claim.how and claim.source and not claim.numbers for claim in claims)


def test_papers_keep_their_order_and_claims_of_no_paper_are_last():
    names = (NOT_PROMISED, "Other", "H2O", "SubGen")
    claims = [Claim(name, "c", "s", "h", HOLDS) for name in names]
    assert [paper for paper, _ in by_paper(claims)] == ["SubGen", "H2O", "Other", NOT_PROMISED]


def test_replayed_cells_are_counted_and_the_model_is_named_without_its_owner(tmp_path):
    rows = [fake_row(layer=layer, prompt=p, model="own/tiny") for layer in (0, 7) for p in ("a", "b")]
    frame = load(write_results(tmp_path, rows))
    assert data_text(frame) == "4 kv heads of 2 layers, 2 texts, tiny"


def test_the_counts_add_up():
    claims = [Claim("H2O", "c", "s", "h", outcome) for outcome in (HOLDS, HOLDS, FAILS)]
    row = "".join(f'<td class="left wrap">{text}</td>' for text in ("H2O", 2, 1, 0, 0, 0, 3))
    assert row in counts_table(claims)


def test_a_run_without_decisions_says_so(tmp_path):
    frame = load(write_results(tmp_path, cells("h2o", [0.2])))
    text = "".join(claims_section(frame, summarise(frame)))
    assert "This run decides no claim." in text
    own = [rule for rule in RULES if rule.paper not in ("SubGen", "BUZZ", "BalanceKV")]
    assert f"Not decided by this run ({len(own)})" in text
    assert "kvreplay figures configs/figures/h2o_fig1.yaml" in text
