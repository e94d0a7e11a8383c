"""Kinds of rules over the table of one run.

A rule returns a Claim, or a Lack: what the run would need. Only the plain instance of a method speaks for its
paper: the one whose label is the method's name, or its only one.
"""

import math
from dataclasses import dataclass

import pandas as pd

from ..stats.intervals import used_rows
from ..stats.paired import lower_in_all
from ..stats.summary import summarise
from ..stats.verdict import FAILS, HOLDS, MIXED
from ..stats.words import count
from .claims import NOT_PROMISED, Claim
from .provenance import compared_facts
from .run_comparison import at_budgets, decided, numbers_text

GREEDY_LINE = 1 - 1 / math.e
COMPARED = "mean relative output error at equal budgets, paired over heads"


@dataclass(frozen=True)
class Lack:
    """A claim that this run does not decide, and why."""

    paper: str
    claim: str
    source: str
    why: str


@dataclass(frozen=True)
class Order:
    """The claim that in every one of `pairs` the first method loses less than the second at equal budgets."""

    paper: str
    claim: str
    source: str
    pairs: tuple[tuple[str, str], ...]
    caveat: str = ""

    def judge(self, frame):
        found = [at_budgets(frame, *pair) for pair in self.pairs]
        lacking = [why for why in found if isinstance(why, str)]
        if lacking:
            return Lack(self.paper, self.claim, self.source, "; ".join(dict.fromkeys(lacking)))
        every = [comparison for budgets in found for comparison in budgets.values()]
        return Claim(
            self.paper,
            self.claim,
            self.source,
            " ".join(part for part in (f"{COMPARED}.", decided(every), self.caveat) if part),
            lower_in_all(every),
            "; ".join(numbers_text(*pair, own) for pair, own in zip(self.pairs, found, strict=True)),
            compared_facts(frame, [name for pair in self.pairs for name in pair]),
        )


@dataclass(frozen=True)
class GreedyRatio:
    paper = "H2O"
    claim = "The greedy cache holds at least 1 − 1/e of the mass that the best tokens of a row would"
    source = "Theorem 4.4, in its spirit: α and β are open"

    def judge(self, frame):
        rows = used_rows(frame[(frame["label"] == "h2o") & frame["mass_recall"].notna()])
        if rows.empty:
            return Lack(self.paper, self.claim, self.source, "needs a plain h2o")
        cells, above = len(rows), int((rows["mass_recall"] >= GREEDY_LINE).sum())
        lowest = rows["mass_recall"].min()
        return Claim(
            self.paper,
            self.claim,
            self.source,
            f"mass_recall of h2o against {GREEDY_LINE:.3f}, one mean over rows per head and budget",
            HOLDS if above == cells else FAILS if above == 0 else MIXED,
            f"{above} of {count(cells, 'cell')} at or above {GREEDY_LINE:.3f}; mean"
            f" {rows['mass_recall'].mean():.3f}, lowest {lowest:.3f}",
            compared_facts(frame, ["h2o"]),
        )


@dataclass(frozen=True)
class BoundHolds:
    """For a method that reports whether its measured error is within its theorem's."""

    paper: str
    claim: str
    source: str
    method: str

    def judge(self, frame):
        rows = used_rows(frame[(frame["method"] == self.method) & frame["bound_holds"].notna()])
        if rows.empty:
            return Lack(self.paper, self.claim, self.source, f"needs {self.method}, which reports its bound")
        covered = rows[_column(rows, "bound_capped", 0) != 1]
        if covered.empty:
            why = "every size was cut below what the theorem asks for, so it promises nothing"
            return Lack(self.paper, self.claim, self.source, why)
        within = covered["bound_holds"] >= _column(covered, "bound_probability", 1)
        return Claim(
            self.paper,
            self.claim,
            self.source,
            "share of (head, row) pairs within the theorem’s ε, against its probability, in every cell whose"
            " sizes are those that it asks for",
            HOLDS if within.all() else MIXED if within.any() else FAILS,
            f"{int(within.sum())} of {count(len(covered), 'cell')}, lowest share"
            f" {covered['bound_holds'].min():.3f}; {count(len(rows) - len(covered), 'capped cell')} left out",
            compared_facts(frame, [self.method]),
        )


def _column(rows, name, absent):
    """A column that older results lack, and that is empty where it does not apply."""
    return rows[name].fillna(absent) if name in rows else pd.Series(absent, index=rows.index)


@dataclass(frozen=True)
class FallsWithBudget:
    paper = NOT_PROMISED
    claim = "A larger budget never loses more"
    source = "common expectation; only the mass of nested sets must grow"

    def judge(self, frame):
        points = summarise(frame)
        notes = points["notes"].str.contains("error rises by")
        curves = points[points["budget_tokens"].notna() & (points["n_units"] > 0)]
        steps = len(curves) - curves.groupby(["trace_id", "label"]).ngroups
        if not steps:
            return Lack(self.paper, self.claim, self.source, "needs a method at two budgets")
        risen = points[notes]
        shown = "; ".join(f"{row.label} at {row.budget_tokens}: {row.notes}" for row in risen.itertuples())
        return Claim(
            self.paper,
            self.claim,
            self.source,
            "mean relative output error of every method at neighbouring budgets; a rise stands with its"
            " paired interval and is often noise",
            HOLDS if risen.empty else FAILS if len(risen) == steps else MIXED,
            f"rises at {len(risen)} of {count(steps, 'step')}" + (f": {shown}" if shown else ""),
            compared_facts(frame, []),
        )
