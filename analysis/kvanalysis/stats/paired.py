"""Two methods on the same heads (docs/measures_explained.md): difference, ratio, interval, win/tie/loss."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import mean_interval, unit_means, used_rows
from .verdict import FAILS, HOLDS, MIXED, UNDECIDED, Verdict

TIE = 0.01  # within 1 % of each other


@dataclass(frozen=True)
class Comparison:
    """`first` against `second` over the units that both have; means of a measure where less is better.

    `difference` is first - second with its 95 % bootstrap interval, `ratio` the geometric mean of
    first / second (NaN if a value is not positive), `wins` the units where `first` is lower by more than 1 %.
    """

    n_units: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    ratio: float
    wins: int
    ties: int
    losses: int

    @property
    def first_is_lower(self):
        """The whole interval lies below zero."""
        return self.high < 0

    @property
    def second_is_lower(self):
        return self.low > 0

    def text(self):
        return (
            f"{self.first:.3g} against {self.second:.3g}, difference {self.difference:+.2g}"
            f" [{self.low:+.2g}, {self.high:+.2g}], ratio {self.ratio:.2f},"
            f" win/tie/loss {self.wins}/{self.ties}/{self.losses} of {self.n_units} heads"
        )


def compare(first, second, measure="rel_err_out_mean"):
    """The Comparison of two selections of rows of `load`'s table; None if they share no unit.

    Seeds of a unit are averaged first. Several budgets in a selection are averaged as well: select one to
    speak of one.
    """
    means = [unit_means(used_rows(rows), [measure])[measure] for rows in (first, second)]
    both = pd.concat(means, axis=1, join="inner").sort_index()
    return compare_units(*both.to_numpy().T)


def compare_units(first, second):
    """The Comparison of two arrays of seed means of the same units, NaN where a unit has none."""
    known = np.isfinite(first) & np.isfinite(second)
    a, b = first[known], second[known]
    if not len(a):
        return None
    difference, low, high = mean_interval(a - b)
    positive = (a > 0).all() and (b > 0).all()
    wins, losses = int((a < b * (1 - TIE)).sum()), int((b < a * (1 - TIE)).sum())
    return Comparison(
        n_units=len(a),
        first=float(a.mean()),
        second=float(b.mean()),
        difference=difference,
        low=low,
        high=high,
        ratio=float(np.exp(np.log(a / b).mean())) if positive else float("nan"),
        wins=wins,
        ties=len(a) - wins - losses,
        losses=losses,
    )


def lower_in_all(comparisons):
    """Outcome of "the first is lower": HOLDS if every interval lies below zero, FAILS if every one above."""
    if all(comparison.first_is_lower for comparison in comparisons):
        return HOLDS
    return FAILS if all(comparison.second_is_lower for comparison in comparisons) else MIXED


LOWER_RULE = (
    "paired 95 % bootstrap interval over heads of the difference, at {places}: all below zero, holds; all"
    " above, does not hold; otherwise mixed"
)


def lower_everywhere(claim, source, pairs, places="every budget", measure="rel_err_out_mean"):
    """The Verdict on "first is lower than second"; `pairs` are (place, rows of first, rows of second).

    Rows are those of `load`'s table; a place without a head that both have, or with a single head (no
    interval), does not decide, and its text says so.
    """
    found = [(place, compare(first, second, measure)) for place, first, second in pairs]
    texts = [f"{place}: {'no head in common' if c is None else c.text()}" for place, c in found]
    deciding = [c for _, c in found if c is not None and c.n_units > 1]
    outcome = lower_in_all(deciding) if deciding else UNDECIDED
    return Verdict(claim, source, LOWER_RULE.format(places=places), outcome, "; ".join(texts))
