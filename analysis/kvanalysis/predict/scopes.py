"""The selections of instances over which measures are held against the loss."""

from dataclasses import dataclass

import numpy as np

from ..stats.families import ONESHOT, READS, STREAM, budgets_of
from .instances import LOSS, SAMPLED, TARGETS

ALL, WITH_ORACLES = "all", "with oracles"
EQUAL_BUDGET, WITH_SINK = "equal budgets", "first token kept"
FAMILY_WORDS = {
    STREAM: "eviction at every step",
    ONESHOT: "one selection after the prompt",
    SAMPLED: "weighted samples and walks",
    READS: "full cache, few tokens read",
}


@dataclass(frozen=True)
class Scope:
    """`rows` [instances] bool; `strata`: columns within whose values ranks are compared before a text's are
    averaged; `losses`: [(name, target, part)], part the rows of the text that are meant, None for all."""

    name: str
    rows: np.ndarray
    strata: tuple = ()
    losses: tuple = ((None, LOSS, None),)


def scopes(instances, sinks=None):
    """[Scope] of the Instances of one trace: all, equal budgets, families, single budgets, with oracles.

    Oracles see the future, so what holds for them need not hold for a method: they are in WITH_ORACLES alone.
    `sinks`: {label: whether it holds its prompts' first token}, None where the run did not save it.
    """
    table = instances.table
    real = (~table["oracle"]).to_numpy()
    whole = [(None, target, None) for target in TARGETS]
    parts = [(rows_name(*part), LOSS, part) for part in instances.parts]
    first = Scope(ALL, real, losses=(*whole, *parts))
    others = [(WITH_SINK, table["label"].map(sinks or {}).eq(True))]
    others += [(family, table["family"].eq(family)) for family in FAMILY_WORDS]
    others += [(f"B = {budget}", table["budget_tokens"].eq(budget)) for budget in budgets_of(table)]
    others = [Scope(name, real & rows.fillna(False).to_numpy(dtype=bool)) for name, rows in others]
    others.append(Scope(WITH_ORACLES, np.ones(len(table), dtype=bool)))
    other = [scope for scope in others if scope.rows.any() and (scope.rows != real).any()]
    equal = [Scope(EQUAL_BUDGET, real, ("budget_tokens",))] if table["budget_tokens"].nunique() > 1 else []
    return [first, *equal, *other]


def rows_name(first, last):
    return f"rows {first}–{last - 1}"
