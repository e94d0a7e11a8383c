"""The cells of the next round of a sweep, and the line that describes them."""

from dataclasses import dataclass

import pandas as pd

from ..budgets.bends import of_all_heads, refinements
from ..budgets.replayed import INSTANCE, UNIT, missing_rows, replayed, with_budget
from ..budgets.search import open_searches

NAMED = 3  # the line names at most so many method instances


@dataclass(frozen=True)
class Wanted:
    """`rows`: INSTANCE, UNIT and budget_tokens to be replayed, with every seed; `cells`: their
    number, seeds counted; `refined`: {instance: number of budgets added}; `searches`: number of open
    searches."""

    rows: pd.DataFrame
    cells: int
    refined: dict
    searches: int

    def line(self):
        """For example: 37 cells, 3 budgets of h2o refined, 12 searches open."""
        said = [f"{self.cells} cells"]
        if self.refined:
            said.append(f"{_budgets_of(self.refined)} refined")
        if self.searches:
            said.append(f"{self.searches} searches open")
        return ", ".join(said)


def next_wanted(config, frame, number):
    """The Wanted of round `number` (1 or more), from the rows of all earlier rounds."""
    table = replayed(frame, config.measure)
    refines = config.refine is not None and number <= config.refine.rounds
    refined = refinements(table, config.refine.tolerance) if refines else {}
    searches = open_searches(table, config.epsilons, config.resolution)
    rows = missing_rows(pd.concat([of_all_heads(table, refined), searches]), table)
    seeds = table.groupby(INSTANCE)["n_seeds"].max()
    cells = int(seeds.reindex(pd.MultiIndex.from_frame(rows[INSTANCE])).sum())
    return Wanted(rows, cells, refined, len(searches))


def unanswered(wanted, frame):
    """The wanted rows that are missing in a round's table."""
    keys = [*INSTANCE, *UNIT, "budget_tokens"]
    return missing_rows(wanted, with_budget(frame[keys]))


def _budgets_of(refined):
    names = [method for method, _ in refined]
    counts = [
        f"{len(budgets)} of {method if names.count(method) == 1 else f'{method} {given}'}"
        for (method, given), budgets in refined.items()
    ]
    if len(counts) > NAMED:
        return f"{sum(map(len, refined.values()))} budgets of {len(counts)} methods"
    counts[0] = counts[0].replace(" of ", " budgets of ", 1)
    return " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))
