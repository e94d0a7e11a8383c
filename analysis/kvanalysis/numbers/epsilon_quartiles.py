"""Budgets that an epsilon needs, over heads."""

import numpy as np
import pandas as pd

from .epsilon_search import MET, NOT_MET

SHARES = {"quarter": 0.25, "half": 0.5, "most": 0.75}  # of the heads
COUNTED = ["met", "at_smallest", "larger_misses", "heads"]


def over_heads(answers):
    """A row per (label, measure, epsilon) of epsilon.csv with a column `label`, heads that took a budget.

    `quarter`, `half`, `most`: the smallest budget that suffices for 25, 50 and 75 % of the heads, infinite
    if no replayed one does. `met`: heads with a budget that suffices; `at_smallest`: those for which the
    smallest replayed one does; `larger_misses`: those where a larger one misses again; `heads`: all.
    """
    answers = answers[answers["status"].isin((MET, NOT_MET))]
    groups = answers.groupby(["label", "measure", "epsilon"], sort=True)
    rows = [(*key, *_of_heads(group)) for key, group in groups]
    return pd.DataFrame(rows, columns=["label", "measure", "epsilon", *SHARES, *COUNTED])


def _of_heads(group):
    met = group["status"] == MET
    budgets = group["budget_tokens"].where(met, np.inf).to_numpy(dtype=float)
    shares = np.quantile(budgets, list(SHARES.values()), method="inverted_cdf")
    at_smallest = met & group["budget_below"].isna()
    counts = met.sum(), at_smallest.sum(), (group["larger_misses"] > 0).sum(), len(group)
    return (*map(float, shares), *map(int, counts))
