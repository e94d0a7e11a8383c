"""The knee of error against budget: the point after which more budget reduces the error less."""

import numpy as np
import pandas as pd

from ..stats.intervals import UNIT, size_interval, unit_means, used_rows

KNEE_DEPTH = 0.1  # share of the chord's height: shallower bends are straight lines with noise


def knee(budgets, errors):
    """(budget, error, depth) of the knee of one curve; NaN, NaN and the depth if there is none.

    The rule: on log-log axes, scaled so that the chord from the first to the last point falls from (0, 1) to
    (1, 0), the knee is the point farthest below the chord. There is none below three points, if the error
    does not fall from the smallest to the largest budget, or if the depth is below KNEE_DEPTH: a power law is
    a straight line and has no knee.
    """
    budgets, errors = np.asarray(budgets, dtype=float), np.asarray(errors, dtype=float)
    if len(budgets) < 3 or not (errors > 0).all() or errors[-1] >= errors[0]:
        return np.nan, np.nan, np.nan
    x = np.log(budgets / budgets[0]) / np.log(budgets[-1] / budgets[0])
    y = np.log(errors / errors[-1]) / np.log(errors[0] / errors[-1])
    below = 1 - x - y
    index = int(np.argmax(below))
    if below[index] < KNEE_DEPTH:
        return np.nan, np.nan, float(below[index])
    return budgets[index], errors[index], float(below[index])


def unit_errors(frame, measure):
    """The measure over (label, budget_tokens, *UNIT), seeds averaged, for rows with a budget."""
    rows = used_rows(frame)
    rows = rows[rows["budget_tokens"].notna() & rows[measure].notna()]
    return unit_means(rows, [measure], ["label", "budget_tokens"])[measure]


def unit_curves(frame, measure):
    """{(label, *UNIT): (budgets, errors)} for every curve with a budget; budgets ascending."""
    curves = {}
    for key, values in unit_errors(frame, measure).groupby(level=["label", *UNIT], sort=True):
        budgets = values.index.get_level_values("budget_tokens").to_numpy(dtype=float)
        curves[key] = budgets, values.to_numpy()
    return curves


def knees(frame, measure="rel_err_out_mean"):
    """A row per (label, *UNIT): `knee_budget`, `knee_error`, `depth` (NaN as in `knee`)."""
    rows = [(*key, *knee(*curve)) for key, curve in unit_curves(frame, measure).items()]
    return pd.DataFrame(rows, columns=["label", *UNIT, "knee_budget", "knee_error", "depth"])


def mean_curves(frame, measure="rel_err_out_mean"):
    """A row per (label, budget): mean over heads, its interval, heads, and the knee of the mean curve."""
    rows = []
    for label, own in unit_errors(frame, measure).groupby(level="label", sort=True):
        by_budget = dict(list(own.groupby(level="budget_tokens", sort=True)))
        means = [size_interval(errors) for errors in by_budget.values()]
        at, _, depth = knee(list(by_budget), [mean for mean, _, _ in means])
        rows += [
            (label, float(budget), *mean, len(errors), at, depth)
            for (budget, errors), mean in zip(by_budget.items(), means, strict=True)
        ]
    names = ["label", "budget", "mean_error", "low", "high", "n_heads", "mean_knee", "mean_depth"]
    return pd.DataFrame(rows, columns=names)
