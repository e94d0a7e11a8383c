"""Two methods on the same heads (docs/measures_explained.md): difference, ratio, interval, win/tie/loss."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import LEVEL, block_errors, blocks_of, mean_interval, two_sided_p, unit_means, used_rows
from .verdict import RULE, Verdict, judge

TIE = 0.01  # values within 1 % of each other are a tie


@dataclass(frozen=True)
class Comparison:
    """`first` against `second` over the units that both have; means of a measure in which less is better.

    `difference` is first - second with its 95 % interval (NaN: too few blocks); `p` is its two-sided
    probability under equality; `ratio` is the geometric mean of first / second (NaN if a value is not
    positive); `wins` counts the units in which `first` is lower by more than 1 %.
    """

    n_units: int
    n_blocks: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    ratio: float
    wins: int
    ties: int
    losses: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def decided(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.high < 0 or self.low > 0

    def text(self) -> str:
        interval = "too few blocks" if np.isnan(self.low) else f"{self.low:+.2g}, {self.high:+.2g}"
        return (
            f"{self.first:.3g} against {self.second:.3g}, difference {self.difference:+.2g}"
            f" [{interval}], ratio {self.ratio:.2f},"
            f" win/tie/loss {self.wins}/{self.ties}/{self.losses} of {self.n_units} heads"
        )


def compare(
    first: pd.DataFrame, second: pd.DataFrame, measure: str = "rel_err_out_mean"
) -> Comparison | None:
    """The Comparison of two selections of rows of `load`'s table; None if they share no unit.

    Seeds of a unit are averaged first. Several budgets in a selection are averaged as well: to compare at one
    budget, select it.
    """
    return compare_units(*(unit_means(used_rows(rows), [measure])[measure] for rows in (first, second)))


def compare_units(first: pd.Series, second: pd.Series) -> Comparison | None:
    """The Comparison of two series of seed means over units, NaN or absent for units without a value."""
    both = pd.concat([first, second], axis=1, join="inner").dropna().sort_index()
    if both.empty:
        return None
    a, b = both.to_numpy(dtype=float).T
    blocks = blocks_of(both.index)
    difference, low, high = mean_interval(a - b, blocks)
    _, errors, freedom = block_errors((a - b)[:, None], blocks)
    wins, losses = int((a < b * (1 - TIE)).sum()), int((b < a * (1 - TIE)).sum())
    positive = (a > 0).all() and (b > 0).all()
    return Comparison(
        n_units=len(a),
        n_blocks=len(set(blocks)),
        first=float(a.mean()),
        second=float(b.mean()),
        difference=difference,
        low=low,
        high=high,
        p=two_sided_p(difference, errors[0], freedom),
        ratio=float(np.exp(np.log(a / b).mean())) if positive else float("nan"),
        wins=wins,
        ties=len(a) - wins - losses,
        losses=losses,
    )


LOWER_RULE = f"paired {LEVEL:.0%} interval (Student, over layers) of the difference, at {{places}}: {RULE}"


def lower_everywhere(
    claim: str,
    source: str,
    pairs: Iterable[tuple[str, pd.DataFrame, pd.DataFrame]],
    places: str = "every budget",
    measure: str = "rel_err_out_mean",
) -> Verdict:
    """The Verdict on "first is lower than second"; `pairs` are (place, rows of first, rows of second).

    Rows come from `load`'s table. A place without a common head, or with too few blocks for an interval,
    decides nothing, and its text says so.
    """
    found = [(place, compare(first, second, measure)) for place, first, second in pairs]
    texts = [f"{place}: {'no head in common' if c is None else c.text()}" for place, c in found]
    outcome = judge(c.interval for _, c in found if c is not None)
    return Verdict(claim, source, LOWER_RULE.format(places=places), outcome, "; ".join(texts))
