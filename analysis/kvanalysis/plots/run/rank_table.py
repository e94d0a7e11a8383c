"""Mean ranks over heads with their intervals; wins, ties and losses of every pair of methods."""

from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from ...drawing.saving import PAGE, Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.families import (
    FAMILIES,
    at_budget,
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
    pairs = pd.concat([pair_table(own) for own in owns], ignore_index=True)
    ranks = pd.concat([rank_rows(own, pairs) for own in owns], ignore_index=True)
    return None if ranks.empty else (ranks, pairs, rivals)


def draw(run, found):
    """Mean ranks, and the pairs of each family at its middle budget."""
    ranks, pairs, rivals = found

    def paint(width):
        kept = _shown(ranks, MOST_BUDGETS[width])
        return draw_ranks(kept, run.styles, width, _note(pairs))

    first = Picture(
        "Ranks over heads", ranks, paint, _caption(ranks, pairs), "rank_table", {"rank_pairs": pairs},
        _cells(ranks),
    )  # fmt: skip
    return [first, *(_matrix(run, family, rivals, pairs) for family in present(rivals))]


def _shown(ranks, most):
    """The rows that are drawn: at most `most` budgets at which every family has ranks; if there are none, as
    with budgets that are shares of the cache, those of the family with the most budgets."""
    families_at = ranks.groupby("budget_tokens")["family"].nunique()
    common = ranks[ranks["budget_tokens"].map(families_at) == ranks["family"].nunique()]
    rows = common if len(common) else ranks[ranks["family"] == ranks["family"].mode().iloc[0]]
    return rows[rows["budget_tokens"].isin(spread(budgets_of(rows), most))]


def rank_rows(own, pairs):
    """Mean rank with interval for each budget and label of one family, over the heads that all labels have.

    Rank 1 has the lowest error; equal errors share their mean rank. Every label has the same heads.
    """
    found = []
    for budget in budgets_of(own):
        errors = unit_table(at_budget(own, budget)).dropna()
        if errors.shape[1] < 2 or errors.empty:
            continue
        ranks = errors.rank(axis=1, method="average")
        for label in ranks:
            mean, low, high = mean_interval(ranks[label])
            found.append(
                {"family": own["family"].iloc[0], "budget_tokens": budget, "label": label, "mean_rank": mean,
                 "rank_low": low, "rank_high": high, "n_methods": errors.shape[1], "n_units": len(errors),
                 "rel_err_out_mean": errors[label].mean(),
                 **_totals(pairs, own["family"].iloc[0], budget, label)}
            )  # fmt: skip
    return pd.DataFrame(found).sort_values(["budget_tokens", "mean_rank"]) if found else pd.DataFrame()


def _totals(pairs, family, budget, label):
    """Wins, ties and losses of a label against all others of its family at a budget."""
    own = pairs[(pairs["family"] == family) & (pairs["budget_tokens"] == budget)]
    first, second = own[own["first"] == label], own[own["second"] == label]
    return {
        "wins": int(first["wins"].sum() + second["losses"].sum()),
        "ties": int(first["ties"].sum() + second["ties"].sum()),
        "losses": int(first["losses"].sum() + second["wins"].sum()),
    }


def pair_table(own):
    """stats.paired for every pair of labels of one family, budget by budget."""
    found = []
    for budget in budgets_of(own):
        errors = unit_table(at_budget(own, budget))
        for first, second in combinations(errors, 2):
            result = compare_units(errors[first], errors[second])
            if result:
                found.append(_pair_row(own["family"].iloc[0], budget, first, second, result))
    return pd.DataFrame(found)


def _pair_row(family, budget, first, second, result):
    return {
        "family": family, "budget_tokens": budget, "first": first, "second": second,
        "n_units": result.n_units,
        "first_error": result.first, "second_error": result.second, "difference": result.difference,
        "difference_low": result.low, "difference_high": result.high, "p": result.p, "ratio": result.ratio,
        "wins": result.wins, "ties": result.ties, "losses": result.losses,
    }  # fmt: skip


def _matrix(run, family, rivals, pairs):
    """The picture of win/tie/loss of every pair at the middle budget."""
    budget = middle_budget(rivals[rivals["family"] == family])
    own = pairs[(pairs["family"] == family) & (pairs["budget_tokens"] == budget)]
    title = f"Wins, ties and losses, {family}, B = {budget}"
    paint = partial(draw_matrix, own, note=_matrix_note(own, family, budget))
    return Picture(title, own, paint, _decided(own), f"wins_{family}", widths=(PAGE,))


def _decided(pairs):
    sure = holm(pairs["p"]) < 1 - LEVEL
    return f"{int(sure.sum())} of m = {len(pairs)} pairs differ significantly (Holm over all, {LEVEL:.0%})."


def _matrix_note(own, family, budget):
    heads = own["n_units"].max()
    return " ".join(
        [
            f"Budget {budget}, {family}: {FAMILIES[family]}. A cell: heads on which the method at its left"
            f" wins / ties / loses against the one above, of {heads} (tie: within 1 %). Bold: the paired"
            f" {LEVEL:.0%} interval of the difference excludes 0. m = {len(own)} comparisons.",
        ]
    )


def _note(pairs):
    return " ".join(
        [
            "Rank 1 has the lowest error on a head; the grey line is the middle rank."
            f" Bars: {LEVEL:.0%} intervals over layers.",
            *(
                f"{family}: {meaning}."
                for family, meaning in FAMILIES.items()
                if family in set(pairs["family"])
            ),
            f"m = {len(pairs)} pairs were compared.",
        ]
    )


def _caption(ranks, pairs):
    texts = []
    for (family, budget), own in ranks.groupby(["family", "budget_tokens"], sort=False):
        best = own.iloc[0]
        span = interval(best["rank_low"], best["rank_high"])
        texts.append(
            f"{family} B={budget}: {best['label']} {best['mean_rank']:.2f} ({span}) of {best['n_methods']}"
        )
    return f"Best mean rank: {'; '.join(texts)}. {_decided(pairs)}"


def _cells(ranks):
    """(header, rows) as for `page.html.sortable_table`."""
    rows = []
    for _, row in ranks.iterrows():
        low = None if np.isnan(row["rank_low"]) else row["rank_low"]
        rows.append(
            [
                (row["family"], row["family"]), _whole(row["budget_tokens"]),
                (row["label"], row["label"]), (f"{row['mean_rank']:.2f}", row["mean_rank"]),
                (interval(row["rank_low"], row["rank_high"]), low), _whole(row["n_methods"]),
                _whole(row["n_units"]),
                (significant(row["rel_err_out_mean"]), row["rel_err_out_mean"]),
                *(_whole(row[name]) for name in ("wins", "ties", "losses")),
            ]
        )  # fmt: skip
    return HEADER, rows


def _whole(value):
    return str(value), int(value)
