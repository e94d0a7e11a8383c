"""Families of methods: methods at one budget are compared only where the budget has one meaning.

A budget is a number of tokens, or a Share of the cache for rows that were requested at shares: at one share
methods hold different numbers of tokens.
"""

import pandas as pd

from ..data.shares import Share, at_share, shares_of, without_share
from .intervals import UNIT, unit_means, used_rows

# The meaning of a budget of B tokens. In each family, B stands for another amount of memory.
STREAM, ONESHOT, READS = "stream", "oneshot", "reads"
FAMILIES = {
    STREAM: "B tokens after every step",
    ONESHOT: "one cut to B, every later token stays",
    READS: "stores every token, reads B",
}


# Short names of the families, for comparisons by bytes.
PHASES = {STREAM: "streaming", ONESHOT: "one-shot", READS: "stores everything"}


def families(rows):
    """`rows` (from `load`) with a budget and an error, without oracles, with the column `family`."""
    used = used_rows(rows)
    used = used[used["budget_tokens"].notna() & ~used["oracle"]]
    return used.assign(family=_family(used))


def family_of(rows):
    """{label: its family} for every label of `rows` (from `load`) with a result, oracles included."""
    used = used_rows(rows)
    return used.assign(family=_family(used)).groupby("label")["family"].first().to_dict()


def _family(used):
    phase = used["params"].map(lambda params: params.get("phase", STREAM))
    # A method without a budget that holds every token does so by design.
    below = (used["budget_tokens"] < used["n_prefill"]).fillna(True).astype(bool)
    stores_all = (used["peak_kept_tokens"] >= used["n_tokens"].astype(float)) & below
    family = phase.where(phase == ONESHOT, STREAM).astype(object)
    # A label has one family: a head on which a selection happens to keep everything does not change it.
    return family.mask(stores_all.groupby(used["label"]).transform("all"), READS)


def present(rows, least=2):
    """The families with at least `least` labels at some budget, in the order of FAMILIES."""
    owns = {family: rows[rows["family"] == family] for family in FAMILIES}
    return [family for family, own in owns.items() if max([0, *_labels_at(own).values()]) >= least]


def budgets_of(rows):
    """The budgets of the rows, ascending: shares, then the tokens of rows without a share."""
    if "budget_tokens" not in rows:
        return shares_of(rows)
    tokens = rows.loc[without_share(rows), "budget_tokens"].dropna().astype(int).unique()
    return [*shares_of(rows), *sorted(int(each) for each in tokens)]  # JSON does not know numpy's


def middle_budget(rows):
    """The middle one of the budgets at which most labels have a result; None if there are no budgets."""
    labels = _labels_at(rows)
    fullest = [budget for budget, count in labels.items() if count == max(labels.values())]
    return fullest[(len(fullest) - 1) // 2] if fullest else None


def _labels_at(rows):
    """{budget: the number of labels there}."""
    return {budget: at_budget(rows, budget)["label"].nunique() for budget in budgets_of(rows)}


def at_budget(rows, budget):
    if isinstance(budget, Share):
        return rows[at_share(rows, budget)]
    return rows[rows["budget_tokens"].eq(budget).fillna(False).astype(bool)]


def at_budgets(rows, budgets):
    """The rows at any of the budgets, in their order."""
    found = {index for budget in budgets for index in at_budget(rows, budget).index}
    return rows[rows.index.isin(found)]


def budget_columns(budget):
    """{column: value} that say the budget in a row of a figure's table; `at_budget` finds the row by them."""
    return {"budget_share": str(budget.value)} if isinstance(budget, Share) else {"budget_tokens": budget}


def budget_words(budget, tokens="B = "):
    """For example "B = 64" or "20 %"; `tokens` stands before a number of tokens."""
    return str(budget) if isinstance(budget, Share) else f"{tokens}{budget}"


def spread(items, most):
    """At most `most` of `items`, evenly spread, both ends included; the middle one if `most` is 1."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[(len(items) - 1) // 2]]
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def unit_table(rows, measure="rel_err_out_mean"):
    """DataFrame [units, labels] of seed means, NaN where a label has no result."""
    return unit_means(rows, [measure], ["label"])[measure].unstack("label").sort_index()


def head_table(rows, measure="rel_err_out_mean"):
    """DataFrame [(layer, kv_head), labels]: averaged over seeds first, then prompts."""
    return unit_table(rows, measure).groupby(level=UNIT[2:]).mean()


def has_values(rows, *columns):
    """Whether every column exists, is numeric and has at least one value."""
    return all(
        name in rows and pd.api.types.is_numeric_dtype(rows[name]) and rows[name].notna().any()
        for name in columns
    )
