"""Mean ranks over heads with their intervals; wins, ties and losses of every pair of methods."""

from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from ...answer.measures import default_column
from ...drawing.saving import PAGE, Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.families import (
    FAMILIES,
    at_budget,
    at_budgets,
    budget_columns,
    budget_words,
    budgets_of,
    families,
    middle_budget,
    present,
    spread,
    unit_table,
)
from ...stats.format import interval, significant
from ...stats.intervals import LEVEL, holm, mean_interval
from ...stats.paired import compare_units
from .compared import compared_words, shares_note
from .rank_panels import draw_matrix, draw_ranks

MOST_BUDGETS = {COLUMN_WIDTH: 2, PAGE_WIDTH: 4}
HEADER = ("family", "budget", "method", "mean rank", "95 % interval", "of", "heads", "mean error",
          "wins", "ties", "losses")  # fmt: skip


def data(run):
    """(ranks, pairs, rivals) for every family with two methods at a budget; None if there is none."""
    rivals = families(run.rows)
    owns = [rivals[rivals["family"] == family] for family in present(rivals)]
    if not owns:
        return None
    measure = default_column(run.rows)
    pairs = pd.concat([pair_table(own, measure) for own in owns], ignore_index=True)
    ranks = pd.concat([rank_rows(own, pairs, measure) for own in owns], ignore_index=True)
    return None if ranks.empty else (ranks, pairs, rivals)


def draw(run, found):
    """Mean ranks, and the pairs of each family at its middle budget."""
    ranks, pairs, rivals = found

    def paint(width):
        kept = _shown(ranks, MOST_BUDGETS[width])
        return draw_ranks(kept, run.styles, width, _note(run, pairs))

    first = Picture(
        "Ranks over heads", ranks, paint, _caption(ranks, pairs), "rank_table", {"rank_pairs": pairs},
        _cells(ranks, default_column(run.rows)),
    )  # fmt: skip
    return [first, *(_matrix(run, family, rivals, pairs) for family in present(rivals))]


def _shown(ranks, most):
    """The rows that are drawn: at most `most` budgets at which every family has ranks; if there are none,
    those of the family with the most ranks."""
    every = ranks["family"].nunique()
    common = [each for each in budgets_of(ranks) if at_budget(ranks, each)["family"].nunique() == every]
    rows = ranks if common else ranks[ranks["family"] == ranks["family"].mode().iloc[0]]
    return at_budgets(rows, spread(common or budgets_of(rows), most))


def rank_rows(own, pairs, measure):
    """Mean rank with interval for each budget and label of one family, over the heads that all labels have.

    Rank 1 has the lowest error; equal errors share their mean rank. Every label has the same heads. A column
    with the name of `measure` holds the mean error.
    """
    found = []
    for budget in budgets_of(own):
        errors = unit_table(at_budget(own, budget), measure).dropna()
        if errors.shape[1] > 1 and len(errors):
            found += _ranks_at(errors, own["family"].iloc[0], budget, pairs, measure)
    return pd.DataFrame(found)


def _ranks_at(errors, family, budget, pairs, measure):
    """The rows of a budget, the best mean rank first. An interval ends at the first and at the last rank."""
    ranks, found = errors.rank(axis=1, method="average"), []
    for label in ranks:
        mean, low, high = mean_interval(ranks[label])
        found.append(
            {"family": family, **budget_columns(budget), "label": label, "mean_rank": mean,
             "rank_low": np.maximum(low, 1), "rank_high": np.minimum(high, errors.shape[1]),
             "n_methods": errors.shape[1], "n_units": len(errors), measure: errors[label].mean(),
             **_totals(pairs, family, budget, label)}
        )  # fmt: skip
    return sorted(found, key=lambda row: row["mean_rank"])


def _totals(pairs, family, budget, label):
    """Wins, ties and losses of a label against all others of its family at a budget."""
    own = _pairs_at(pairs, family, budget)
    first, second = own[own["first"] == label], own[own["second"] == label]
    return {
        "wins": int(first["wins"].sum() + second["losses"].sum()),
        "ties": int(first["ties"].sum() + second["ties"].sum()),
        "losses": int(first["losses"].sum() + second["wins"].sum()),
    }


def _pairs_at(pairs, family, budget):
    return at_budget(pairs[pairs["family"] == family], budget)


def pair_table(own, measure):
    """stats.paired for every pair of labels of one family, budget by budget."""
    found = []
    for budget in budgets_of(own):
        errors = unit_table(at_budget(own, budget), measure)
        for first, second in combinations(errors, 2):
            result = compare_units(errors[first], errors[second])
            if result:
                found.append(_pair_row(own["family"].iloc[0], budget, first, second, result))
    return pd.DataFrame(found)


def _pair_row(family, budget, first, second, result):
    return {
        "family": family, **budget_columns(budget), "first": first, "second": second,
        "n_units": result.n_units,
        "first_error": result.first, "second_error": result.second, "difference": result.difference,
        "difference_low": result.low, "difference_high": result.high, "p": result.p, "ratio": result.ratio,
        "wins": result.wins, "ties": result.ties, "losses": result.losses,
    }  # fmt: skip


def _matrix(run, family, rivals, pairs):
    """The picture of win/tie/loss of every pair at the middle budget."""
    budget = middle_budget(rivals[rivals["family"] == family])
    own = _pairs_at(pairs, family, budget)
    title = f"Wins, ties and losses, {family}, {budget_words(budget)}"
    paint = partial(draw_matrix, own, note=_matrix_note(run, own, family, budget))
    return Picture(title, own, paint, _decided(own), f"wins_{family}", widths=(PAGE,))


def _decided(pairs):
    sure = holm(pairs["p"]) < 1 - LEVEL
    return f"{int(sure.sum())} of m = {len(pairs)} pairs differ significantly (Holm over all, {LEVEL:.0%})."


def _matrix_note(run, own, family, budget):
    heads = own["n_units"].max()
    return " ".join(
        [
            f"Budget {budget}, {family}: {FAMILIES[family]}.",
            *shares_note(run.rows),
            f"Error: {compared_words(run.rows)}. A cell: heads on which the method at its left"
            f" wins / ties / loses against the one above, of {heads} (tie: within 1 %). Bold: the paired"
            f" {LEVEL:.0%} interval of the difference excludes 0. m = {len(own)} comparisons.",
        ]
    )


def _note(run, pairs):
    return " ".join(
        [
            f"Rank 1 has the lowest {compared_words(run.rows)} on a head; the grey line is the middle"
            " rank."
            f" Bars: {LEVEL:.0%} intervals over layers.",
            *(
                f"{family}: {meaning}."
                for family, meaning in FAMILIES.items()
                if family in set(pairs["family"])
            ),
            *shares_note(run.rows),
            f"m = {len(pairs)} pairs were compared.",
        ]
    )


def _caption(ranks, pairs):
    texts = []
    for family, budget, own in _groups(ranks):
        best = own.iloc[0]
        span = interval(best["rank_low"], best["rank_high"])
        mean = f"{best['label']} {best['mean_rank']:.2f} ({span})"
        texts.append(f"{family} {budget_words(budget, 'B=')}: {mean} of {best['n_methods']}")
    return f"Best mean rank: {'; '.join(texts)}. {_decided(pairs)}"


def _groups(ranks):
    """(family, budget, rows) in the order of the table."""
    for family, own in ranks.groupby("family", sort=False):
        for budget in budgets_of(own):
            yield family, budget, at_budget(own, budget)


def _cells(ranks, measure):
    """(header, rows) as for `page.html.sortable_table`."""
    rows = []
    for family, budget, row in ((*place, row) for *place, own in _groups(ranks) for _, row in own.iterrows()):
        low = None if np.isnan(row["rank_low"]) else row["rank_low"]
        rows.append(
            [
                (family, family), (str(budget), getattr(budget, "value", budget)),
                (row["label"], row["label"]), (f"{row['mean_rank']:.2f}", row["mean_rank"]),
                (interval(row["rank_low"], row["rank_high"]), low), _whole(row["n_methods"]),
                _whole(row["n_units"]),
                (significant(row[measure]), row[measure]),
                *(_whole(row[name]) for name in ("wins", "ties", "losses")),
            ]
        )  # fmt: skip
    return HEADER, rows


def _whole(value):
    return str(value), int(value)
