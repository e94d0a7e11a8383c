"""How closely predicted losses match the losses that the model itself had."""

from dataclasses import dataclass

import numpy as np

from ..stats.ranks import spearmans

FEWEST = 5  # with fewer instances there is no result
SMALL = 1.0  # nats a token; beyond, the model is so wrong that losses no longer follow their causes


@dataclass(frozen=True)
class Agreement:
    """Over `instances` with a loss: `spearman`, the rank correlation; and, for instances measured below SMALL
    nats, `factor`, the median of measured / predicted, and `scatter`, exp of the standard deviation of its
    logarithm, both NaN below FEWEST."""

    spearman: float
    factor: float
    scatter: float
    instances: int


def agreement(predicted, measured):
    """The Agreement of two arrays [n] of nats a token; None below FEWEST instances. Instances with a
    predicted or measured loss of zero are left out: they have no ratio, and would inflate the correlation."""
    predicted, measured = (np.asarray(values, dtype=float) for values in (predicted, measured))
    some = (predicted > 0) & (measured > 0)
    predicted, measured = predicted[some], measured[some]
    if len(predicted) < FEWEST:
        return None
    logs = np.log(measured / predicted)[measured < SMALL]
    few = len(logs) < FEWEST
    factor, scatter = (np.nan, np.nan) if few else (np.exp(np.median(logs)), np.exp(logs.std(ddof=1)))
    rank = float(spearmans([predicted], [measured])[0, 0])
    return Agreement(rank, float(factor), float(scatter), len(predicted))


def points(table):
    """The instances in `predicted` that are both predicted and measured: trace_id, prompt, label,
    budget_tokens, kl, kl_low, kl_high, kl_mean, seeds averaged; empty if there are none."""
    names = ["kl", "kl_low", "kl_high", "kl_mean"]
    if "kl_mean" not in table:
        return table.assign(kl_mean=np.nan).iloc[:0]
    both = table[table["kl"].notna() & table["kl_mean"].notna()]
    by = ["trace_id", "prompt", "label", "budget_tokens"]
    return both.groupby(by, dropna=False, sort=False)[names].mean().reset_index()
