"""Predicted losses of a method at a budget, as means over texts."""

import numpy as np

ENDS = ["low", "high"]


def over_texts(losses):
    """A row for each label and budget_tokens of Losses, in the order of its table: `loss`, the mean over
    texts of `kl` (or of `kl_head` if only that is known), `low`, `high`, `measured`, `n_texts`, `n_measured`.

    `low` and `high` are the means of the ends of the texts' own 95 % intervals, NaN if a text has none. This
    assumes that the deviations of all texts agree, because a method that differs from the masks does so on
    every text. They do not cover other texts. `measured`: the mean over the texts that the closed loop ran,
    NaN without one. Seeds are averaged first.
    """
    table = losses.table
    names = {"kl_head" if losses.why else "kl": "loss", "kl_low": "low", "kl_high": "high"}
    table = table.rename(columns=names)
    table = table.assign(measured=table.get("kl_mean", np.nan))
    at = ["label", "budget_tokens"]
    by_text = table.groupby([*at, "trace_id", "prompt"], dropna=False, sort=False)
    texts = by_text[["loss", *ENDS, "measured"]].mean()
    groups = texts.groupby(level=at, dropna=False, sort=False)
    means, counts = groups.mean(), groups.count()
    means[ENDS] = means[ENDS].where(counts[ENDS].eq(counts["loss"], axis=0))
    means["n_texts"], means["n_measured"] = counts["loss"], counts["measured"]
    return means.reset_index()
