"""What instances lose near the prompt and far behind it, with recorded choices and with their own."""

import pandas as pd

from ..data.confirm_csv import OWN, RECORDED
from ..stats.families import at_budget, budgets_of
from .instances import LOSS, whole_rows
from .scopes import rows_name


def by_distance(instances):
    """(budget, DataFrame [label, family, a column for each range of rows, all rows]): mean loss increase over
    texts in nats a token at the middle budget, largest of all rows first. None without ranges or budgets."""
    budgets = budgets_of(instances.table)
    if not instances.parts or not budgets:
        return None
    budget = budgets[(len(budgets) - 1) // 2]
    table = instances.table[["label", "family", "budget_tokens"]].assign(
        **{rows_name(*rows): losses[LOSS] for rows, losses in instances.parts.items()},
        all_rows=instances.table[LOSS],
    )
    own = at_budget(table, budget).drop(columns="budget_tokens")
    means = own.groupby(["label", "family"], sort=False).mean().reset_index()
    return budget, means.sort_values("all_rows", ascending=False, ignore_index=True)


def growth(instances):
    """DataFrame [family, first, last]: mean loss increase over a family's instances in the first and in the
    last range of rows, over all budgets and texts; oracles left out."""
    if not instances.parts:
        return pd.DataFrame()
    real = ~instances.table["oracle"]
    ends = [list(instances.parts.values())[place][LOSS][real] for place in (0, -1)]
    table = pd.DataFrame({"family": instances.table["family"][real], "first": ends[0], "last": ends[1]})
    return table.groupby("family").mean().reset_index()


SAME = 0.001  # nats a token
PLACE = ["prompt", "label", "budget_tokens", "layers"]


def by_selection(losses):
    """DataFrame [label, budget_tokens, layers, recorded, own, difference, smallest, largest, n_texts] of what
    was confirmed with both selections, seeds and then texts averaged; nats a token. `smallest` and `largest`
    are the differences' ends over texts."""
    means = whole_rows(losses).groupby([*PLACE, "selection"], dropna=False)[LOSS].mean().unstack("selection")
    if not {RECORDED, OWN} <= set(means):
        return pd.DataFrame()
    both = means.dropna(subset=[RECORDED, OWN]).reset_index()
    both["difference"] = both[OWN] - both[RECORDED]
    groups = both.groupby(["label", "budget_tokens", "layers"], dropna=False)
    return groups.agg(
        recorded=(RECORDED, "mean"), own=(OWN, "mean"), difference=("difference", "mean"),
        smallest=("difference", "min"), largest=("difference", "max"), n_texts=("prompt", "nunique"),
    ).reset_index()  # fmt: skip


def hidden(table):
    """(mean difference, instances that change by less than SAME nats, the row that changes most) of
    `by_selection`."""
    size = table["difference"].abs()
    return float(table["difference"].mean()), int((size < SAME).sum()), table.loc[size.idxmax()]
