"""The inverse question: the smallest budget whose error stays below epsilon.

It reads error against budget of one (label, trace, prompt, layer, kv head), seeds averaged, at the budgets
that were run. Nothing is extrapolated: an answer outside of them is censored and says so.
"""

import numpy as np
import pandas as pd

from ..stats.intervals import BOOTSTRAP_SEED, LEVEL, RESAMPLES, UNIT, unit_means, used_rows

MEASURES = ("rel_err_out_mean", "eps_spectral_mean", "eps_frobenius_mean")
# What is known of the needed budget: it lies between two budgets, is one of them, is no larger than the
# smallest one, or is larger than the largest one.
INTERPOLATED, RUN, AT_MOST, MORE_THAN = "interpolated", "run", "at most", "more than"


def needed_budget(budgets, errors, epsilon):
    """(budget, state, smallest sufficient budget that was run) of one curve; budgets ascending.

    The error may rise with the budget: what counts is the smallest budget from which on all larger ones
    have error <= epsilon. Between the last budget above epsilon and the next one the error is taken to be a
    power of the budget (INTERPOLATED). AT_MOST the smallest: no budget is above epsilon. MORE_THAN the
    largest: it is above epsilon itself; the third value is then NaN. An error that is missing is above.
    """
    budgets, errors = np.asarray(budgets, dtype=float), np.asarray(errors, dtype=float)
    above = np.flatnonzero(~(errors <= epsilon))
    if not len(above):
        return budgets[0], AT_MOST, budgets[0]
    last = above[-1]
    if last == len(budgets) - 1:
        return budgets[-1], MORE_THAN, np.nan
    (b, c), (e, f) = budgets[last : last + 2], errors[last : last + 2]
    if not np.isfinite(e) or f <= 0 or f == epsilon:
        return c, RUN, c
    share = np.log(epsilon / e) / np.log(f / e)
    return float(np.exp(np.log(b) + share * np.log(c / b))), INTERPOLATED, c


def unit_curves(frame, measure):
    """{(label, *UNIT): (budgets, errors)} of every curve with a budget; budgets ascending, seeds averaged."""
    rows = used_rows(frame)
    rows = rows[rows["budget_tokens"].notna() & rows[measure].notna()]
    means = unit_means(rows, [measure], ["label", "budget_tokens"])[measure]
    curves = {}
    for key, values in means.groupby(level=["label", *UNIT], sort=True):
        curves[key] = (
            values.index.get_level_values("budget_tokens").to_numpy(dtype=float),
            values.to_numpy(),
        )
    return curves


def needed_budgets(frame, epsilons, measure="rel_err_out_mean"):
    """A row per (label, *UNIT, epsilon): `budget_needed` [tokens], `state`, `budget_run`, `n_budgets`."""
    rows = [
        (*key, epsilon, *needed_budget(budgets, errors, epsilon), len(budgets))
        for key, (budgets, errors) in unit_curves(frame, measure).items()
        for epsilon in epsilons
    ]
    names = ["label", *UNIT, "epsilon", "budget_needed", "state", "budget_run", "n_budgets"]
    return pd.DataFrame(rows, columns=names).assign(measure=measure)


def over_heads(needed):
    """A row per (trace_id, label, epsilon): the median of `needed_budgets` over units.

    The median needs the order alone, so a head that no budget suffices for counts as infinite and one that
    the smallest suffices for as that: `state` says if the median is one of them (`budget_needed` is then the
    bound). `low`, `high`: 95 % percentile bootstrap of the median over units; infinite: above all budgets.
    """
    keys = ["trace_id", "label", "epsilon"]
    rows = [(*key, *_median(group)) for key, group in needed.groupby(keys, sort=True)]
    counts = ["n_units", "n_at_most", "n_more_than"]
    return pd.DataFrame(rows, columns=[*keys, "budget_needed", "state", "low", "high", *counts])


def _median(group):
    most, least = group["state"] == MORE_THAN, group["state"] == AT_MOST
    values = group["budget_needed"].where(~most, np.inf).to_numpy()
    median = _upper_median(values[None, :])[0]
    low, high = _median_interval(values)
    state = MORE_THAN if np.isinf(median) else INTERPOLATED
    if least.any() and median <= group.loc[least, "budget_needed"].max():
        state = AT_MOST
    bound = group.loc[most, "budget_needed"].max() if np.isinf(median) else median
    return bound, state, low, high, len(group), int(least.sum()), int(most.sum())


def _median_interval(values):
    if len(values) < 2:
        return np.nan, np.nan
    random = np.random.default_rng(BOOTSTRAP_SEED)
    medians = _upper_median(values[random.integers(0, len(values), (RESAMPLES, len(values)))])
    tail = (1 - LEVEL) / 2
    ends = np.quantile(medians, [tail, 1 - tail], method="nearest")
    return float(ends[0]), float(ends[1])


def _upper_median(values):
    """Over the last axis; of an even number the upper one, so that it is a budget of some head."""
    return np.sort(values, axis=-1)[..., values.shape[-1] // 2]
