"""What an instance loses with the recorded choices, and with choices of its own."""

import pandas as pd

from ..data.confirm_csv import OWN, RECORDED
from .confirmed_instances import LOSS, whole_rows

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
