"""Which methods answer significantly less often than the best one of their budget."""

import numpy as np
import pandas as pd

from ..stats.intervals import LEVEL, block_errors, holm, two_sided_p
from .answers import ENOUGH

COLUMNS = [
    "group",
    "place",
    "label",
    "accuracy",
    "accuracy_full",
    "best",
    "difference",
    "p",
    "decided",
    "n_prompts",
]


def answer_tests(rows):
    """A row of COLUMNS for each group, budget and label of `answer_rows`, oracles left out, best first.

    `difference`: the label's score less the best one's, mean over the prompts that both have. `p`: paired
    Student's test over prompts, Holm-adjusted over the labels of the group and budget; NaN for the best
    itself and below five prompts. `decided`: p < 0.05. Groups whose full model scores less than ENOUGH have
    no row.
    """
    real = rows[~rows["oracle"].astype(bool)]
    tables = [
        _of_place(group, place, own)
        for (group, place), own in real.groupby(["group", "place"])
        if 1 - own.drop_duplicates("prompt")["wrong_full"].mean() >= ENOUGH
    ]
    return pd.concat(tables, ignore_index=True)[COLUMNS] if tables else pd.DataFrame(columns=COLUMNS)


def _of_place(group, place, own):
    scores = 1 - own.pivot_table(index=["trace_id", "prompt"], columns="label", values="wrong", sort=False)
    means = scores.mean().sort_values(ascending=False, kind="stable")
    best = means.index[0]
    rows = []
    for label in means.index:
        paired = (scores[label] - scores[best]).dropna()
        mean, errors, freedom = block_errors(paired.to_numpy(float)[:, None])
        p = np.nan if label == best else two_sided_p(mean[0], errors[0], freedom)
        rows.append((label, means[label], mean[0], p, len(paired)))
    table = pd.DataFrame(rows, columns=["label", "accuracy", "difference", "p", "n_prompts"])
    table["p"] = holm(table["p"])
    full = 1 - own.drop_duplicates("prompt")["wrong_full"].mean()
    decided = table["p"] < 1 - LEVEL
    return table.assign(group=group, place=place, accuracy_full=full, best=best, decided=decided)
