"""The tables of `retrieval` for the terminal, the page and OUT/confirm_retrieval.csv."""

import pandas as pd

from .format import ABSENT, whole
from .retrieval import ENOUGH
from .words import count

SHOWN = ("group", "label", "oracle", "budget", "tokens", "n_prompts", "n_answers", "exact", "exact_low",
         "exact_high", "exact_full", "rank", "rank_full", "logprob", "logprob_full")  # fmt: skip


def group_words(group):
    """What the cells of a group are, and how the full model does."""
    first = group.table.iloc[0]
    full = f"the full model writes {first['exact_full'] * group.n_prompts:.0f} of them exactly"
    what = f"{group.name}: {count(group.n_prompts, 'prompt')} with an answer; {full}"
    if group.by_exact:
        return f"{what}. Below: exact answers, of all."
    return (
        f"{what}, no more than {ENOUGH:.0%}, so that exact answers tell little. Below: the answer’s median"
        f" rank, its worst token counting; with the full model it is {whole(first['rank_full'])}."
    )


def group_cells(group):
    """(header, rows): a row a method, best first, a column a budget; a cell is (text, sort key)."""
    table = group.table
    shown = {key: _cell(group, row) for key, row in zip(_keys(table), table.itertuples(), strict=True)}
    score = table["exact"] if group.by_exact else -table["rank"]
    order = score.groupby(table["label"]).mean().sort_values(ascending=False, kind="stable").index
    rows = [
        [(label, label), *(shown.get((label, budget), (ABSENT, None)) for budget in group.budgets)]
        for label in order
    ]
    return ["method", *group.budgets], rows


def retrieval_table(groups):
    """All numbers of [(trace_id, [Group])], a row per group, method and budget."""
    tables = [group.table.assign(group=group.name, trace_id=trace) for trace, own in groups for group in own]
    return pd.concat(tables, ignore_index=True)[["trace_id", *SHOWN]]


def _keys(table):
    return zip(table["label"], table["budget"], strict=True)


def _cell(group, row):
    if group.by_exact:
        return f"{row.exact * row.n_answers:.0f}/{row.n_answers}", row.exact
    return whole(row.rank), row.rank
