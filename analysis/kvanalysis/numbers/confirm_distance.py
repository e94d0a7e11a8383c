"""What instances lose near the prompt and far behind it."""

import pandas as pd

from .confirm_scopes import rows_name
from .confirmed_instances import LOSS
from .contenders import at_budget, budgets_of


def by_distance(found):
    """(budget, DataFrame [label, family, a column for each range of rows, all rows]): mean loss increase over
    texts in nats a token at the middle budget, largest of all rows first. None without ranges or budgets."""
    budgets = budgets_of(found.table)
    if not found.parts or not budgets:
        return None
    budget = budgets[(len(budgets) - 1) // 2]
    table = found.table[["label", "family", "budget_tokens"]].assign(
        **{rows_name(*rows): losses[LOSS] for rows, losses in found.parts.items()}, all_rows=found.table[LOSS]
    )
    own = at_budget(table, budget).drop(columns="budget_tokens")
    means = own.groupby(["label", "family"], sort=False).mean().reset_index()
    return budget, means.sort_values("all_rows", ascending=False, ignore_index=True)


def growth(found):
    """DataFrame [family, first, last]: mean loss increase over a family's instances in the first and in the
    last range of rows, over all budgets and texts; oracles left out."""
    if not found.parts:
        return pd.DataFrame()
    real = ~found.table["oracle"]
    ends = [list(found.parts.values())[place][LOSS][real] for place in (0, -1)]
    table = pd.DataFrame({"family": found.table["family"][real], "first": ends[0], "last": ends[1]})
    return table.groupby("family").mean().reset_index()
