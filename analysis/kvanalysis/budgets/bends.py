"""Finds where error against budget bends: budgets off the straight line between their neighbours.

The curve of a method instance is ln(mean error over heads) against ln(budget), seeds averaged first, at the
budgets at which all heads were replayed. A budget between two others bends the curve if its ln(error) lies
off the straight line through its two neighbours by more than the tolerance. All heads are then replayed at
the geometric midpoints of both neighbouring intervals. An interval is not divided if its midpoint would come
closer than CLOSEST to one of its ends. An error of zero has no logarithm: a budget is not judged if its own
error or a neighbour's is zero.
"""

import numpy as np
import pandas as pd

from ..stats.intervals import UNIT
from .replayed import INSTANCE, common_curves, midpoint, with_budget

CLOSEST = 1.05  # smallest ratio of two neighbouring budgets


def bends(budgets, errors, tolerance):
    """Indices, ascending, of the interior points that lie more than `tolerance` off the line between their
    neighbours; budgets ascending."""
    x = np.log(np.asarray(budgets, dtype=float))
    errors = np.asarray(errors, dtype=float)
    y = np.log(np.where(errors > 0, errors, np.nan))
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    off = np.abs(y[1:-1] - (y[:-2] + share * (y[2:] - y[:-2])))
    return [int(i) + 1 for i in np.flatnonzero(off > tolerance)]


def refining_budgets(budgets, errors, tolerance):
    """The midpoints around the bends of one curve, ascending."""
    budgets, found = list(budgets), set()
    for i in bends(budgets, errors, tolerance):
        for low, high in ((budgets[i - 1], budgets[i]), (budgets[i], budgets[i + 1])):
            middle = midpoint(low, high)
            if middle and middle >= CLOSEST * low and high >= CLOSEST * middle:
                found.add(middle)
    return sorted(found)


def refinements(table, tolerance):
    """{instance: midpoints around its bends} for `replayed`'s table; instances without any are left out."""
    wanted = {}
    for instance, curve in common_curves(table).items():
        budgets = refining_budgets(curve.index, curve, tolerance)
        if budgets:
            wanted[instance] = budgets
    return wanted


def of_all_heads(table, wanted):
    """A row per (instance, unit, budget) in `wanted`, {instance: budgets}, for every head at which the
    instance was replayed."""
    heads = with_budget(table)[[*INSTANCE, *UNIT]].drop_duplicates()
    parts = [
        heads[(heads[INSTANCE] == list(instance)).all(axis=1)].assign(budget_tokens=budget)
        for instance, budgets in wanted.items()
        for budget in budgets
    ]
    return pd.concat([heads.head(0).assign(budget_tokens=pd.Series(dtype="int64")), *parts])
