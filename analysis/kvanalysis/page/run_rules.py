"""Papers' claims that the methods and budgets of one run can test, and the rules that decide them.

A rule returns a Ruling, or a phrase that says what the run would need. A paper is represented only by the
plain instance of its method: the one whose label is the method's name, or the only one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd

from ..stats.families import at_budget, budget_words, budgets_of
from ..stats.intervals import FEWEST_BLOCKS, used_rows
from ..stats.paired import compare
from ..stats.verdict import RULE, judge, of_counts
from ..stats.words import count
from .claims import NOT_PROMISED, Claim
from .provenance import compared_facts

GREEDY_LINE = 1 - 1 / math.e
COMPARED = "mean relative output error at equal budgets, paired over heads"
MOST_BUDGETS = 6  # numbers of more budgets are not printed but counted


@dataclass(frozen=True)
class Rule:
    """`judge(frame, summary)` decides the claim from `load`'s table and its stats.summary."""

    paper: str
    claim: str
    source: str
    judge: Callable


@dataclass(frozen=True)
class Ruling:
    """A rule's decision; `methods`: the methods that it looked at, none if all."""

    how: str
    outcome: str
    numbers: str
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """A claim that this run does not decide, and the reason."""

    paper: str
    claim: str
    source: str
    why: str


def run_claims(frame, summary):
    """([Claim], [Missing]) for every rule, from `load`'s table and its stats.summary."""
    decided, missing = [], []
    for rule in RULES:
        ruling, said = rule.judge(frame, summary), (rule.paper, rule.claim, rule.source)
        if isinstance(ruling, str):
            missing.append(Missing(*said, ruling))
        else:
            data = compared_facts(frame, ruling.methods)
            decided.append(Claim(*said, ruling.how, ruling.outcome, ruling.numbers, data))
    return decided, missing


def _order(pairs, caveat, frame, _summary):
    """The first method of each pair has a lower error than the second at equal budgets."""
    found = [at_budgets(frame, *pair) for pair in pairs]
    lacking = [why for why in found if isinstance(why, str)]
    if lacking:
        return "; ".join(dict.fromkeys(lacking))
    every = [comparison for budgets in found for comparison in budgets.values()]
    rule = f"{COMPARED}, in {count(len(every), 'comparison')}: {RULE}. {caveat}"
    numbers = "; ".join(_numbers(*pair, own) for pair, own in zip(pairs, found, strict=True))
    methods = tuple(name for pair in pairs for name in pair)
    return Ruling(rule.strip(), judge(comparison.interval for comparison in every), numbers, methods)


def at_budgets(frame, first, second):
    """{budget: Comparison} of both methods' plain instances, or a phrase: why they cannot be compared."""
    rows = {name: plain(frame, name) for name in (first, second)}
    absent = [name for name, own in rows.items() if own.empty]
    if absent:
        return f"needs a plain {' and a plain '.join(absent)}"
    phases = {name: _phases(own) for name, own in rows.items()}
    if phases[first] != phases[second]:
        return (
            f"{first} runs as {'/'.join(phases[first])}, {second} as {'/'.join(phases[second])}:"
            " equal budgets are not equal sizes"
        )
    found = {}
    for budget in _shared_budgets(*rows.values()):
        comparison = compare(*(at_budget(own, budget) for own in rows.values()))
        if comparison and not math.isnan(comparison.low):
            found[budget] = comparison
    return found or f"{first} and {second} share no budget with results on {FEWEST_BLOCKS} layers"


def plain(frame, method):
    """Rows of the instance that represents `method`: labelled by its name alone, or the only one."""
    rows = frame[frame["method"] == method]
    named = rows[rows["label"] == method]
    return named if len(named) or rows["label"].nunique() > 1 else rows


def _phases(rows):
    return sorted({str(params.get("phase", "not stated")) for params in rows["params"]})


def _shared_budgets(first, second):
    """Budgets that both have and that evict something: below the prompt length."""
    useful = [
        budgets_of(own[(own["budget_tokens"] < own["n_prefill"]).fillna(False)]) for own in (first, second)
    ]
    return [budget for budget in useful[0] if budget in useful[1]]


def _numbers(first, second, found):
    """The means, difference with interval, and wins of every budget, as one line."""
    lines = [
        f"{budget_words(budget, 'B=')}: {c.first:.3g} against {c.second:.3g} [{c.low:+.2g}, {c.high:+.2g}],"
        f" {c.wins}/{c.ties}/{c.losses}"
        for budget, c in [*found.items()][:MOST_BUDGETS]
    ]
    more = len(found) - len(lines)
    return f"{first} against {second}: " + ", ".join(lines + [f"and {more} more budgets"] * (more > 0))


def _greedy_ratio(frame, _summary):
    rows = used_rows(frame[(frame["label"] == "h2o") & frame["mass_recall"].notna()])
    if rows.empty:
        return "needs a plain h2o"
    cells, above = len(rows), int((rows["mass_recall"] >= GREEDY_LINE).sum())
    return Ruling(
        f"mass_recall of h2o against {GREEDY_LINE:.3f}, one mean over rows per head and budget",
        of_counts(above, cells),
        f"{above} of {count(cells, 'cell')} at or above {GREEDY_LINE:.3f}; mean"
        f" {rows['mass_recall'].mean():.3f}, lowest {rows['mass_recall'].min():.3f}",
        ("h2o",),
    )


def _bound_holds(method, frame, _summary):
    """The rule for a method that reports whether its measured error is within its theorem's bound."""
    rows = used_rows(frame[(frame["method"] == method) & frame["bound_holds"].notna()])
    if rows.empty:
        return f"needs {method}, which reports its bound"
    covered = rows[_column(rows, "bound_capped", 0) != 1]
    if covered.empty:
        return "every size was cut below what the theorem requires, so the theorem guarantees nothing"
    within = covered["bound_holds"] >= _column(covered, "bound_probability", 1)
    return Ruling(
        "share of (head, row) pairs within the theorem’s ε, against its probability, in every cell that has"
        " the sizes that the theorem requires",
        of_counts(int(within.sum()), len(within)),
        f"{int(within.sum())} of {count(len(covered), 'cell')}, lowest share"
        f" {covered['bound_holds'].min():.3f}; {count(len(rows) - len(covered), 'capped cell')} left out",
        (method,),
    )


def _column(rows, name, absent):
    """A column that is missing in older results, and empty where it does not apply."""
    return rows[name].fillna(absent) if name in rows else pd.Series(absent, index=rows.index)


def _budget_monotone(_frame, points):
    curves = points[points["budget_tokens"].notna() & (points["n_units"] > 0)]
    steps = len(curves) - curves.groupby(["trace_id", "label"]).ngroups
    if not steps:
        return "needs a method at two budgets"
    risen = points[points["notes"].str.contains("error rises by")]
    shown = "; ".join(f"{row.label} at {row.budget_tokens}: {row.notes}" for row in risen.itertuples())
    return Ruling(
        "mean relative output error of every method at neighbouring budgets; a rise is shown with its"
        " paired interval and is often noise",
        of_counts(steps - len(risen), steps),
        f"rises at {len(risen)} of {count(steps, 'step')}" + (f": {shown}" if shown else ""),
        (),
    )


def _ordered(paper, claim, source, *pairs, caveat=""):
    return Rule(paper, claim, source, partial(_order, pairs, caveat))


RULES = (
    _ordered(
        "H2O",
        "Heavy hitters and recent tokens together have a lower error than either alone",
        "Fig. 1 right, Fig. 4, Table 6 (as attention error)",
        *(("h2o", "h2o_heavy"), ("h2o", "local")),
    ),
    _ordered(
        "H2O",
        "Heavy hitters and recent tokens have a lower error than recent tokens only",
        "Fig. 4 (as attention error)",
        ("h2o", "window"),
    ),
    Rule(
        "H2O",
        "The greedy cache holds at least 1 − 1/e of the mass that the best tokens of a row would",
        "Theorem 4.4, in its spirit: α and β are open",
        _greedy_ratio,
    ),
    _ordered(
        "StreamingLLM",
        "A few first tokens (sinks) rescue the window",
        "sections 3.1 and 3.2",
        ("streaming_llm", "window"),
    ),
    _ordered(
        "SubGen",
        "SubGen has a lower error than H2O and attention sinks",
        "Table 1 (there: line retrieval)",
        *(("subgen", "h2o"), ("subgen", "streaming_llm")),
    ),
    Rule(
        "SubGen",
        "The error stays within ε‖x‖₂‖V‖_op",
        "Theorem 1, equation (4)",
        partial(_bound_holds, "subgen_stream"),
    ),
    _ordered(
        "BUZZ",
        "BUZZ has a lower error than H2O",
        "Fig. 5, Table 2 (there: ROUGE, at equal average sizes)",
        ("buzz", "h2o"),
        caveat="Budgets are peaks here; the paper compares average sizes.",
    ),
    _ordered(
        "BUZZ",
        "Recent tokens only have the highest error, attention sinks the next",
        "Fig. 5, Table 2 (there: ROUGE)",
        *(("streaming_llm", "local"), ("h2o", "streaming_llm"), ("buzz", "streaming_llm")),
    ),
    _ordered(
        "BalanceKV",
        "BalanceKV has a lower error than a weighted uniform sample",
        "Fig. 2, section 4.1",
        ("balancekv", "uniform"),
        caveat="An unbalanced walk keeps a longer exact tail; only a run with equal tails separates the two"
        " effects.",
    ),
    Rule(
        NOT_PROMISED,
        "A larger budget never raises the error",
        "common expectation; only the kept mass of nested sets must grow",
        _budget_monotone,
    ),
)
