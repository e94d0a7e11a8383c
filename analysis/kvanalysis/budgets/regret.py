"""How much higher a method's error is than the oracles' at equal budgets, and why
(docs/measures_explained.md)."""

import numpy as np
import pandas as pd

from ..stats.families import (
    ONESHOT,
    READS,
    STREAM,
    at_budget,
    budget_columns,
    budgets_of,
    families,
    has_values,
    unit_table,
)
from ..stats.intervals import used_rows
from ..stats.paired import compare_units

TOPK_HEAD, TOPK_GROUP, STATIC = "topk per head", "topk per group", "static oracle"
# The oracle whose budget has the same meaning: top-k reads as many tokens as a stream holds, the static
# oracle cuts once.
REFERENCE = {STREAM: TOPK_GROUP, READS: TOPK_GROUP, ONESHOT: STATIC}
PARTS = {
    "set_error": "rel_err_set_mean",
    "normaliser_part": "rel_err_normaliser_mean",
    "numerator_part": "rel_err_numerator_mean",
}


def rung_labels(rows):
    """{rung: label} for the oracles that were run with default parameters."""
    found = {}
    instances = rows[rows["oracle"]].drop_duplicates(["method", "params_json"])
    for method, params, label in zip(
        *(instances[name] for name in ("method", "params", "label")), strict=True
    ):
        rung = _rung(method, params)
        if rung:
            found.setdefault(rung, label)
    return found


def _rung(method, params):
    if method == "topk_oracle" and params.get("variant", "default") == "default":
        return TOPK_HEAD if params.get("per_head") else TOPK_GROUP
    protected = params.get("sinks", 0) or params.get("recent", 0)
    return STATIC if method == "static_oracle" and not params.get("per_head") and not protected else None


def ladder(rows):
    """One row per (budget, rung or method); empty if no static oracle was run at that budget.

    Columns: budget_tokens, or budget_share for a budget requested as a share; label, rung ("" for methods),
    family, rel_err_out_mean and static_error over the heads that both have, regret (geometric mean of the
    ratios over heads), regret_of_means, difference with interval, wins, ties, losses, n_units, reference and
    reference_error, and, if the run has them, set_error, selection (set_error - reference_error), beyond_set
    (error - set_error), normaliser_part, numerator_part.
    """
    rungs = rung_labels(rows)
    if STATIC not in rungs:
        return pd.DataFrame()
    rivals = families(rows)
    oracles = used_rows(rows)
    oracles = oracles[oracles["label"].isin(rungs.values())].assign(family="")
    found = []
    for budget in budgets_of(oracles):
        own = pd.concat([at_budget(oracles, budget), at_budget(rivals, budget)])
        found += _at(own, rungs, budget)
    return pd.DataFrame(found)


def _at(own, rungs, budget):
    errors = unit_table(own)
    if rungs[STATIC] not in errors:
        return []
    parts = {part: unit_table(own, column) for part, column in PARTS.items() if has_values(own, column)}
    family = own.groupby("label")["family"].first()
    names = {label: rung for rung, label in rungs.items()}
    found = []
    for label in errors:
        result = compare_units(errors[label], errors[rungs[STATIC]])
        if result:
            row = {
                **budget_columns(budget),
                "label": label,
                "rung": names.get(label, ""),
                "family": family[label],
            }
            row |= _compared(result)
            found.append(row | _split(label, errors, parts, rungs.get(REFERENCE.get(family[label]))))
    return found


def _compared(result):
    return {
        "n_units": result.n_units, "rel_err_out_mean": result.first, "static_error": result.second,
        "regret": result.ratio, "regret_of_means": result.first / result.second if result.second else np.nan,
        "difference": result.difference, "difference_low": result.low, "difference_high": result.high,
        "wins": result.wins, "ties": result.ties, "losses": result.losses,
    }  # fmt: skip


def _split(label, errors, parts, reference):
    """The parts of the error, over the heads on which label and reference have all parts."""
    split = dict.fromkeys(("reference", "reference_error", "set_error", "selection", "beyond_set"), np.nan)
    split |= {part: table[label].mean() for part, table in parts.items() if label in table}
    if reference not in errors:
        return split
    shared = pd.DataFrame({"error": errors[label], "reference": errors[reference]})
    shared["set"] = parts["set_error"][label] if label in parts.get("set_error", ()) else np.nan
    complete = shared.dropna()
    split |= {
        "reference": reference,
        "reference_error": shared[["error", "reference"]].dropna()["reference"].mean(),
    }
    if len(complete):
        means = complete.mean()
        split |= {"set_error": means["set"], "selection": means["set"] - means["reference"],
                  "beyond_set": means["error"] - means["set"]}  # fmt: skip
    return split
