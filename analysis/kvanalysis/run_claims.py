"""Claims that the methods and budgets of one run allow to test, by rules over its table.

A rule returns a Claim, or a Lack: what the run would need. Only the plain instance of a method speaks for its
paper: the one whose label is the method's name, or its only one.
"""

from dataclasses import dataclass

from .claims import NOT_PROMISED, Claim
from .drawn import FAILS, HOLDS, MIXED, count
from .provenance import compared_facts
from .run_comparison import at_budgets, decided, numbers_text
from .stats import used_rows
from .summary import summarise

GREEDY_LINE = 0.632  # 1 - 1/e
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
            outcome(every),
            "; ".join(numbers_text(*pair, own) for pair, own in zip(self.pairs, found, strict=True)),
            compared_facts(frame, [name for pair in self.pairs for name in pair]),
        )


def outcome(comparisons):
    """Holds if every interval lies below zero, fails if every one lies above, mixed otherwise."""
    if all(comparison.first_is_lower for comparison in comparisons):
        return HOLDS
    return FAILS if all(comparison.second_is_lower for comparison in comparisons) else MIXED


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
            f"mass_recall of h2o against {GREEDY_LINE}, one mean over rows per head and budget",
            HOLDS if above == cells else FAILS if above == 0 else MIXED,
            f"{above} of {count(cells, 'cell')} at or above {GREEDY_LINE}; mean"
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
        kept = rows["bound_holds"].mean()
        return Claim(
            self.paper,
            self.claim,
            self.source,
            "bound_holds, mean over cells; the theorem's memory is capped at what was seen, see bound_capped",
            HOLDS if kept == 1 else FAILS if kept == 0 else MIXED,
            f"{kept:.3f} over {count(len(rows), 'cell')} of {count(rows['label'].nunique(), 'setting')}",
            compared_facts(frame, [self.method]),
        )


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


RULES = (
    Order(
        "H2O",
        "Heavy hitters and recent tokens together lose less than either alone",
        "Fig. 1 right, Fig. 4, Table 6 (as attention error)",
        (("h2o", "h2o_heavy"), ("h2o", "local")),
    ),
    Order(
        "H2O",
        "Heavy hitters and recent tokens lose less than recent tokens only",
        "Fig. 4 (as attention error)",
        (("h2o", "window"),),
    ),
    GreedyRatio(),
    Order(
        "StreamingLLM",
        "A few first tokens (sinks) rescue the window",
        "sections 3.1 and 3.2",
        (("streaming_llm", "window"),),
    ),
    Order(
        "SubGen",
        "SubGen loses less than H2O and attention sinks",
        "Table 1 (there: line retrieval)",
        (("subgen", "h2o"), ("subgen", "streaming_llm")),
    ),
    BoundHolds("SubGen", "The error stays within ε‖x‖₂‖V‖_op", "Theorem 1, equation (4)", "subgen_stream"),
    Order(
        "BUZZ",
        "BUZZ loses less than H2O",
        "Fig. 5, Table 2 (there: ROUGE, at equal average sizes)",
        (("buzz", "h2o"),),
        "Budgets are peaks here; the paper compares average sizes.",
    ),
    Order(
        "BUZZ",
        "Recent tokens only lose most, attention sinks next",
        "Fig. 5, Table 2 (there: ROUGE)",
        (("streaming_llm", "local"), ("h2o", "streaming_llm"), ("buzz", "streaming_llm")),
    ),
    Order(
        "BalanceKV",
        "BalanceKV loses less than a weighted uniform sample",
        "Fig. 2, section 4.1",
        (("balancekv", "uniform"),),
        "An unbalanced walk keeps a longer exact tail; only a run with the tail matched tells the two apart.",
    ),
    FallsWithBudget(),
)


def run_claims(frame):
    """([Claim], [Lack]) of every rule on `load`'s table."""
    judged = [rule.judge(frame) for rule in RULES]
    return [j for j in judged if isinstance(j, Claim)], [j for j in judged if isinstance(j, Lack)]
