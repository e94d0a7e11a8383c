"""For every head, the budget from which on an epsilon is met: its known bounds, and the budget to try next.

A replayed budget meets epsilon if the mean of the measure over its seeds is at most epsilon; a budget with a
failed cell misses. Curves need not be monotone. The answer is the smallest replayed budget from which on
every larger replayed budget meets. Just below it lies the largest budget that misses; smaller budgets that
meet are counted. Nothing is interpolated.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..stats.intervals import UNIT
from .replayed import INSTANCE, head_curves, midpoint, replayed, with_budget

MET, NOT_MET, NO_BUDGET, NO_VALUE = "met", "not_met", "no_budget", "no_value"
COLUMNS = [
    *("trace_id", "model", "prompt", "method", "given", "layer", "kv_head", "measure", "epsilon", "status"),
    *("budget_tokens", "share_of_prompt", "error", "budget_below", "error_below", "smaller_meets", "n_seeds"),
]
COUNTS = dict.fromkeys(
    ("layer", "kv_head", "budget_tokens", "budget_below", "smaller_meets", "n_seeds"), "Int64"
)


@dataclass(frozen=True)
class Bracket:
    """Indices into a curve's budgets: `misses`, the largest budget that misses (None: all meet), and `meets`,
    the next one (None: the largest budget misses). `smaller_meets`: number of budgets below `misses` that
    meet."""

    meets: int | None
    misses: int | None
    smaller_meets: int


def bracket(errors, epsilon):
    """The Bracket of one curve, with its errors in ascending order of budgets."""
    meets = np.asarray(errors, dtype=float) <= epsilon  # NaN misses
    missing = np.flatnonzero(~meets)
    if not len(missing):
        return Bracket(0, None, 0)
    last = int(missing[-1])
    return Bracket(last + 1 if last + 1 < len(meets) else None, last, int(meets[:last].sum()))


def probe(budgets, errors, epsilon, resolution):
    """The budget to try next, None if the search has ended: the crossing lies between two budgets that are
    neighbours or whose ratio is at most `resolution`, or it does not lie between replayed budgets."""
    found = bracket(errors, epsilon)
    if found.meets is None or found.misses is None:
        return None
    low, high = int(budgets[found.misses]), int(budgets[found.meets])
    return None if high <= resolution * low else midpoint(low, high)


def open_searches(table, epsilons, resolution):
    """A row per unfinished search in `replayed`'s table: INSTANCE, UNIT, `epsilon` and `budget_tokens`, the
    budget to try next."""
    rows = [
        (*key, epsilon, budget)
        for key, curve in head_curves(with_budget(table))
        for epsilon in epsilons
        if (budget := probe(curve.budgets, curve.errors, epsilon, resolution)) is not None
    ]
    return pd.DataFrame(rows, columns=[*INSTANCE, *UNIT, "epsilon", "budget_tokens"])


def epsilon_table(frame, measure, epsilons):
    """A row per (instance, unit, epsilon) of `load`'s table, in its order, epsilons ascending; COLUMNS.

    status `met`: budget_tokens is the smallest replayed budget from which on every larger replayed budget
    meets epsilon, and error its error; budget_below is the largest replayed budget that misses, missing if
    all meet. `not_met`: the largest replayed budget misses; it is budget_below. `smaller_meets`: number of
    budgets below budget_below that meet. `no_budget`: the method takes none; error is its error. `no_value`:
    the measure has no value at any budget, because it does not apply or all cells failed.
    """
    rows = [
        dict(zip([*INSTANCE, *UNIT], key, strict=True))
        | {"model": curve.model, "epsilon": epsilon}
        | _answer(curve, epsilon)
        for key, curve in head_curves(replayed(frame, measure))
        for epsilon in sorted(epsilons)
    ]
    found = pd.DataFrame(rows).rename(columns={"given_json": "given"}).assign(measure=measure)
    return found.reindex(columns=COLUMNS).astype(COUNTS)


def _answer(curve, epsilon):
    if np.isnan(curve.budgets).any():
        said = {"status": NO_BUDGET, "error": curve.errors[0], "smaller_meets": 0}
        return said | {"n_seeds": curve.n_seeds[0]}
    found = bracket(curve.errors, epsilon)
    said = {"smaller_meets": found.smaller_meets} | _at(curve, found.misses, "budget_below", "error_below")
    if found.meets is None:
        status = NO_VALUE if np.isnan(curve.errors).all() else NOT_MET
        return said | {"status": status, "n_seeds": curve.n_seeds[-1]}
    share = curve.budgets[found.meets] / curve.n_prefill
    said |= {"status": MET, "share_of_prompt": share, "n_seeds": curve.n_seeds[found.meets]}
    return said | _at(curve, found.meets, "budget_tokens", "error")


def _at(curve, index, budget, error):
    return {} if index is None else {budget: curve.budgets[index], error: curve.errors[index]}


SHARES = {"quarter": 0.25, "half": 0.5, "most": 0.75}  # shares of heads
COUNTED = ["met", "at_smallest", "smaller_meets", "heads"]


def labelled(answers, frame):
    """Rows of `epsilon_table` (or epsilon.csv) for the instances of `load`'s table, with its `label`."""
    names = frame[["trace_id", *INSTANCE, "label"]].drop_duplicates()
    return answers.merge(names.rename(columns={"given_json": "given"}))


def over_heads(answers, by=("label", "measure", "epsilon")):
    """A row per group of `labelled` answers, over the heads that took a budget.

    `quarter`, `half`, `most`: the smallest budget that suffices for 25, 50 and 75 % of the heads, infinite
    if no replayed budget does. `met`: number of heads with a budget that suffices; `at_smallest`: heads for
    which the smallest replayed budget does; `smaller_meets`: heads where a budget meets though a larger one
    misses; `heads`: all heads.
    """
    answers = answers[answers["status"].isin((MET, NOT_MET))]
    rows = [(*key, *_of_heads(group)) for key, group in answers.groupby(list(by), sort=True)]
    return pd.DataFrame(rows, columns=[*by, *SHARES, *COUNTED])


def _of_heads(group):
    met = group["status"] == MET
    budgets = group["budget_tokens"].astype(float).where(met, np.inf).to_numpy()
    shares = np.quantile(budgets, list(SHARES.values()), method="inverted_cdf")
    at_smallest = met & group["budget_below"].isna()
    counts = met.sum(), at_smallest.sum(), (group["smaller_meets"] > 0).sum(), len(group)
    return (*map(float, shares), *map(int, counts))
