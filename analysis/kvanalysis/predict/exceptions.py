"""Where a measure misleads: pairs in the wrong order, other texts, far rows, and methods' own choices."""

from itertools import permutations

import numpy as np
import pandas as pd

from ..data.confirm_csv import OWN, RECORDED, draw_variance
from ..data.confirmed import whole_rows
from ..stats.families import at_budget, budgets_of
from ..stats.fits import isotonic
from .correlations import rows_name
from .instances import LOSS

MARGIN = 1.5  # smallest ratio of the errors
LEAST_NATS = 0.02  # smallest difference of the losses per token
NOISES = 2  # smallest difference in standard errors
COLUMNS = ["prompt", "budget_tokens", "less_error", "less_loss", "error_of_less_error", "error_of_less_loss",
           "error_ratio", "loss_of_less_error", "loss_of_less_loss", "loss_difference", "standard_error",
           "residual_of_less_error", "residual_of_less_loss"]  # fmt: skip


def exceptions(instances, values):
    """DataFrame of COLUMNS, the largest difference first: pairs at one budget of a text where `less_error`
    has at most 1/MARGIN of the other's value but a higher loss, by LEAST_NATS and by NOISES standard errors.

    A residual is the loss minus the monotone fit of a text's losses to `values`. Losses in nats a token.
    """
    pairs = wide_pairs(instances, values)
    pairs = pairs[pairs["loss_difference"] > _noise(pairs)]
    return pairs.sort_values("loss_difference", ascending=False, ignore_index=True)


def wide_pairs(instances, values):
    """DataFrame of COLUMNS: every pair at one budget of a text whose values differ by MARGIN or more."""
    table = instances.table.assign(value=values, residual=residuals(instances, values))
    table = table[np.isfinite(values) & ~table["oracle"]]
    pairs = [
        _pair(one, other)
        for _, rows in table.groupby(["prompt", "budget_tokens"], dropna=False)
        for one, other in permutations(rows.to_dict("records"), 2)
        if MARGIN * one["value"] <= other["value"] and other["value"] > 0
    ]
    return pd.DataFrame(pairs, columns=COLUMNS)


def count_significant_pairs(pairs):
    """The number of `wide_pairs` whose losses differ by more than noise, in either direction."""
    return int((pairs["loss_difference"].abs() > _noise(pairs)).sum())


def _noise(pairs):
    return np.maximum(LEAST_NATS, NOISES * pairs["standard_error"])


def residuals(instances, values):
    """[instances] loss minus the monotone fit within the text; NaN for oracles and without a value."""
    known = (np.isfinite(values) & ~instances.table["oracle"]).to_numpy()
    left = np.full(len(values), np.nan)
    losses = instances.table[LOSS].to_numpy(dtype=float)
    for rows in instances.table.groupby("prompt").indices.values():
        rows = rows[known[rows]]
        left[rows] = losses[rows] - isotonic(values[rows], losses[rows])
    return left


def standard_error(kl, n_rows):
    """Standard error of a mean loss increase [nats/token]: the log ratio of two nearly equal distributions
    has a variance of 2 KL from token to token, to second order; the variance of a mean over n rows is 2 KL /
    n."""
    return np.sqrt(2 * np.maximum(kl, 0) / n_rows)


def _pair(one, other):
    errors = [standard_error(each["kl_mean"], each["n_rows"]) for each in (one, other)]
    errors += [each["draw_error"] for each in (one, other)]
    return {
        "prompt": one["prompt"], "budget_tokens": one["budget_tokens"],
        "less_error": one["label"], "less_loss": other["label"],
        "error_of_less_error": one["value"], "error_of_less_loss": other["value"],
        "error_ratio": other["value"] / one["value"] if one["value"] > 0 else np.inf,
        "loss_of_less_error": one[LOSS], "loss_of_less_loss": other[LOSS],
        "loss_difference": one[LOSS] - other[LOSS], "standard_error": float(np.linalg.norm(errors)),
        "residual_of_less_error": one["residual"], "residual_of_less_loss": other["residual"],
    }  # fmt: skip


def exceptional_labels(pairs):
    """DataFrame [label, side, pairs, texts, budgets, against]: the number of pairs in which a label loses
    "more" or "less" (`side`) than the measure predicts, most pairs first."""
    rows = []
    for side, own, other in (("more", "less_error", "less_loss"), ("less", "less_loss", "less_error")):
        for label, group in pairs.groupby(own):
            budgets = sorted(group["budget_tokens"].dropna().astype(int).unique())
            rows.append((label, side, len(group), group["prompt"].nunique(), budgets,
                         group[other].value_counts().to_dict()))  # fmt: skip
    table = pd.DataFrame(rows, columns=["label", "side", "pairs", "texts", "budgets", "against"])
    return table.sort_values("pairs", ascending=False, kind="stable", ignore_index=True)


def spread_over_texts(instances, values):
    """(median ratio of largest to smallest loss, median ratio for `values`, number of instances) over
    instances that every text has and whose losses are above noise; NaN, NaN, 0 below two texts."""
    table = instances.table.assign(value=values)
    groups = table.groupby(["label", "budget_tokens"], dropna=False)
    ends = groups.agg(low=(LOSS, "min"), high=(LOSS, "max"), least=("value", "min"), most=("value", "max"),
                      texts=("prompt", "nunique"))  # fmt: skip
    known = ends[(ends["texts"] == len(instances.texts())) & (ends["low"] > LEAST_NATS) & (ends["least"] > 0)]
    if len(instances.texts()) < 2 or known.empty:
        return np.nan, np.nan, 0
    return (
        float((known["high"] / known["low"]).median()),
        float((known["most"] / known["least"]).median()),
        len(known),
    )


def by_distance(instances):
    """(budget, DataFrame [label, family, a column for each range of rows, all rows]): mean loss increase over
    texts in nats a token at the middle budget, the largest over all rows first. None without ranges or
    budgets."""
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
    last range of rows, over all budgets and texts, without oracles."""
    if not instances.parts:
        return pd.DataFrame()
    real = ~instances.table["oracle"]
    ends = [list(instances.parts.values())[place][LOSS][real] for place in (0, -1)]
    table = pd.DataFrame({"family": instances.table["family"][real], "first": ends[0], "last": ends[1]})
    return table.groupby("family").mean().reset_index()


SAME = 0.001  # nats a token
PLACE = ["prompt", "label", "budget_tokens", "layers"]


def by_selection(losses):
    """DataFrame [label, budget_tokens, layers, recorded, own, difference, smallest, largest, n_texts,
    standard_error] of instances confirmed with both selections, averaged over seeds and then texts; nats a
    token. `smallest` and `largest` are the range of the difference over texts; the standard error is over
    draws."""
    rows = whole_rows(losses)
    groups = rows.assign(variance=draw_variance(rows)).groupby([*PLACE, "selection"], dropna=False)
    means = groups[LOSS].mean().unstack("selection")
    if not {RECORDED, OWN} <= set(means):
        return pd.DataFrame()
    variances = (groups["variance"].mean() / groups.size()).unstack("selection")
    means["variance"] = variances[RECORDED] + variances[OWN]
    both = means.dropna(subset=[RECORDED, OWN]).reset_index()
    both["difference"] = both[OWN] - both[RECORDED]
    groups = both.groupby(["label", "budget_tokens", "layers"], dropna=False)
    return groups.agg(
        recorded=(RECORDED, "mean"), own=(OWN, "mean"), difference=("difference", "mean"),
        smallest=("difference", "min"), largest=("difference", "max"), n_texts=("prompt", "nunique"),
        standard_error=("variance", lambda each: np.sqrt(each.sum()) / len(each)),
    ).reset_index()  # fmt: skip


def hidden(table):
    """(mean difference, number of instances that change by less than SAME nats, the row that changes most) of
    `by_selection`."""
    size = table["difference"].abs()
    return float(table["difference"].mean()), int((size < SAME).sum()), table.loc[size.idxmax()]
