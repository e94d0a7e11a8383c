"""Budgets evenly spaced on a logarithmic scale, and means over seeds at replayed budgets.

A method instance is a method with its non-default parameters as canonical text.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from kvbase.cells import METHOD, in_table

from ..stats.intervals import UNIT

INSTANCE = in_table(METHOD)


@dataclass(frozen=True)
class Curve:
    """One head of one instance, arrays [budgets] in ascending order of budgets (NaN if the method takes
    none)."""

    budgets: np.ndarray
    errors: np.ndarray
    n_seeds: np.ndarray
    n_prefill: int
    model: str


def replayed(frame, measure):
    """A row per (instance, unit, budget) of `load`'s table, in its order: `error`, the mean of `measure` over
    seeds, NaN if a seed failed or has no value; `n_seeds`, `n_prefill` and `model`.

    The budget is missing (pd.NA) if the method takes none.
    """
    values = frame[measure].where(frame["status"] == "ok")
    groups = frame.assign(value=values).groupby(
        [*INSTANCE, *UNIT, "budget_tokens"], sort=False, dropna=False, as_index=False
    )
    table = groups.agg(
        error=("value", "mean"),
        with_value=("value", "count"),
        n_seeds=("value", "size"),
        n_prefill=("n_prefill", "first"),
        model=("model", "first"),
    )
    table["error"] = table["error"].where(table["with_value"] == table["n_seeds"], np.nan)
    return table.drop(columns="with_value")


def with_budget(table):
    """The rows of `replayed` for methods that take a budget; budgets as int."""
    rows = table[table["budget_tokens"].notna()]
    return rows.assign(budget_tokens=rows["budget_tokens"].astype("int64"))


def head_curves(table):
    """((*INSTANCE, *UNIT), Curve) for every head and instance in `replayed`'s table, in its order."""
    keys = [*INSTANCE, *UNIT]
    codes = table.groupby(keys, sort=False).ngroup().to_numpy()
    budgets = table["budget_tokens"].astype(float).to_numpy()
    order = np.lexsort((budgets, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    parts = [np.split(table[name].to_numpy()[order], starts[1:]) for name in ("error", "n_seeds")]
    first = table.iloc[order[starts]]
    facts = zip(first["n_prefill"], first["model"], strict=True)
    curves = zip(np.split(budgets[order], starts[1:]), *parts, facts, strict=True)
    for key, (at, errors, seeds, (n_prefill, model)) in zip(
        first[keys].itertuples(index=False, name=None), curves, strict=True
    ):
        yield key, Curve(at, errors, seeds, n_prefill, model)


def common_curves(table):
    """{instance: Series of mean errors over budgets}, ascending: the mean over heads of an instance at the
    budgets at which all its heads were replayed. Heads without a value at one of these are left out, so
    that every budget's mean covers the same heads. Instances without such a head are left out.
    """
    curves = {}
    for instance, rows in with_budget(table).groupby(INSTANCE, sort=False):
        by_head = rows.pivot(index=UNIT, columns="budget_tokens", values="error")
        was_replayed = rows.assign(there=1).pivot(index=UNIT, columns="budget_tokens", values="there")
        common = by_head.loc[:, was_replayed.notna().all()].dropna()
        if len(common):
            curves[instance] = common.mean().sort_index()
    return curves


def at_common_budgets(frame):
    """The rows of `load`'s table at budgets at which every head of the instance was replayed, and all rows of
    methods without a budget and of failed cells. Budgets that a search tried at some heads have no mean over
    all heads.
    """
    head = frame.groupby(UNIT, sort=False).ngroup()
    instance, budget = [frame[name] for name in INSTANCE], frame["budget_tokens"]
    of_all = head.groupby(instance).transform("nunique")
    held = head.groupby([*instance, budget], dropna=False).transform("nunique")
    return frame[(held == of_all) | budget.isna() | (frame["status"] != "ok")]


def missing_rows(wanted, table):
    """The rows of `wanted` (columns INSTANCE, UNIT, budget_tokens) that are not in `replayed`'s table, each
    once, in order."""
    keys = [*INSTANCE, *UNIT, "budget_tokens"]
    held = pd.MultiIndex.from_frame(with_budget(table)[keys])
    wanted = wanted[keys].drop_duplicates()
    return wanted[~pd.MultiIndex.from_frame(wanted).isin(held)].reset_index(drop=True)


def log_spaced(first, last, count):
    """`count` budgets from `first` to `last` with a constant ratio of neighbours, rounded to whole tokens;
    fewer if rounding makes two equal. Ascending; `count` is at least 2."""
    ratio = last / first
    return sorted({whole(first * ratio ** (i / (count - 1))) for i in range(count)})


def midpoint(low, high):
    """The whole budget nearest to sqrt(low * high), strictly between the two; None if they are neighbours."""
    if high - low < 2:
        return None
    return min(max(whole(math.sqrt(low * high)), low + 1), high - 1)


def whole(tokens):
    """Rounds to whole tokens, halves upwards."""
    return math.floor(tokens + 0.5)
