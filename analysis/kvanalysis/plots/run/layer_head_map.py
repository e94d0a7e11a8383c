"""The error of every layer x kv head at one budget, a panel for each method, on one shared scale."""

from functools import partial

from ...drawing import head_maps
from ...drawing.budget_axes import ROUNDING
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.families import at_budget, budget_words, budgets_of, head_table, middle_budget
from ...stats.intervals import used_rows
from ...stats.words import count
from .compared import order_note, shares_note

MOST_PANELS = {PAGE_WIDTH: 15, COLUMN_WIDTH: 8}
SCALE = "mean rel. error"


def data(run, budget=None):
    """(errors [(layer, kv head), labels] at `budget`, rows behind them, budget). Default: the middle budget
    of the run; methods without a budget are included."""
    used = used_rows(run.rows)
    budget = budget or middle_budget(used)
    chosen = used[used["budget_tokens"].isna() | used.index.isin(at_budget(used, budget).index)]
    # Methods that are exact up to rounding would take most of the scale.
    chosen = chosen[chosen.groupby("label")["rel_err_out_mean"].transform("mean") > ROUNDING]
    chosen = chosen[chosen["rel_err_out_mean"] > 0]
    table = head_table(chosen) if len(chosen) else chosen
    return (table, chosen, budget) if table.shape[0] > 1 else None


def draw(run, found):
    table, chosen, budget = found
    order = list(table.mean().sort_values().index)
    norm = head_maps.shared_norm(table[order].to_numpy())
    title = f"Error by layer and head, {'no budget' if budget is None else budget_words(budget)}"
    paint = partial(_figure, run, table, order, norm, budget)
    return [Picture(title, _long(table, chosen), paint, _caption(run, table, budget), name="layer_head_map")]


def _long(table, chosen):
    long = table.stack().rename("rel_err_out_mean").reset_index()
    budgets = chosen.groupby("label")["budget_tokens"].min()
    return long.assign(budget_tokens=long["label"].map(budgets)).sort_values(["label", "layer", "kv_head"])


def _figure(run, table, order, norm, budget, width):
    shown = order[: MOST_PANELS[width]]
    return head_maps.maps(width, table, shown, norm, SCALE, _note(run, order, shown, budget))


def _note(run, order, shown, budget):
    at = "" if budget is None else f" at budget {budget} (methods without a budget at their own size)"
    parts = [f"Mean of ratios{at}, seeds and texts averaged; the lowest mean first."]
    parts += [*order_note(run.rows), *shares_note(run.rows)]
    exact = sorted(_without_error(run.rows) - set(order))
    if exact:
        parts.append(f"No error beyond rounding: {', '.join(exact)}.")
    if len(shown) < len(order):
        parts.append(f"Not drawn, in the CSV: {', '.join(order[len(shown) :])}.")
    return " ".join(parts)


def _without_error(rows):
    means = used_rows(rows).groupby("label")["rel_err_out_mean"].mean()
    return set(means.index[means <= ROUNDING])


def _caption(run, table, budget):
    """The head and the layer with the highest error, as numbers, and the other budgets."""
    mean = table.mean(axis=1)
    (layer, head), worst = mean.idxmax(), mean.max()
    by_layer = mean.groupby(level=0).mean()
    others = [str(b) for b in budgets_of(used_rows(run.rows)) if b != budget]
    more = f" Also run: budgets {', '.join(others)}." if others else ""
    return (
        f"Mean over {count(table.shape[1], 'method')}: hardest head layer {layer} kv head {head}"
        f" ({worst:.3g}), hardest layer {by_layer.idxmax()} ({by_layer.max():.3g}), easiest layer"
        f" {by_layer.idxmin()} ({by_layer.min():.3g}). One model and text: do not rely on differences"
        f" between layers below 10 %.{more}"
    )
