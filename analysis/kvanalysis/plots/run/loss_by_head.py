"""The loss that the errors of every layer x kv head cost the model at one budget, a panel for each of a few
methods on one shared scale, for a trace that holds a gradient."""

from functools import partial

import numpy as np
from matplotlib.colors import LogNorm

from ...drawing import head_maps
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...predict.measures import THIRDS
from ...stats.families import (
    at_budget,
    budget_columns,
    budget_words,
    has_values,
    head_table,
    middle_budget,
    spread,
)
from ...stats.intervals import used_rows
from ...stats.words import count
from .compared import shares_note

KL = "kl_head_mean"
MOST_PANELS = {PAGE_WIDTH: 5, COLUMN_WIDTH: 4}
WIDEST = 1e4  # ratio from the largest loss to the end of the colours
SCALE = "loss of the head alone [nats/token]"


def data(run, budget=None):
    """(nats a token [(layer, kv head), labels] at `budget`, budget). Default: the middle budget of the run,
    or all rows if none has a budget. None without a gradient, a loss, or a second head."""
    if not has_values(run.rows, KL):
        return None
    used = used_rows(run.rows)
    used = used[used[KL].notna()]
    budget = budget or middle_budget(used)
    chosen = used if budget is None else at_budget(used, budget)
    chosen = chosen[chosen.groupby("label")[KL].transform("max") > 0]
    table = head_table(chosen, KL) if len(chosen) else chosen
    return (table, budget) if table.shape[0] > 1 else None


def draw(run, found):
    table, budget = found
    order = list(table.sum().sort_values().index)
    title = f"The heads behind the model’s loss, {'no budget' if budget is None else budget_words(budget)}"
    paint = partial(_figure, table, order, _norm(table.to_numpy()), budget, shares_note(run.rows))
    return [Picture(title, _long(table, budget), paint, _caption(table), name="loss_by_head")]


def _long(table, budget):
    long = table.stack().rename(KL).reset_index().assign(**budget_columns(budget))
    return long.sort_values(["label", "layer", "kv_head"])


def _norm(values):
    """Logarithmic, because a few heads cost most; heads that cost nothing get the palest colour."""
    positive = values[np.isfinite(values) & (values > 0)]
    high = positive.max()
    return LogNorm(min(max(positive.min(), high / WIDEST), high / 2), high, clip=True)


def _figure(table, order, norm, budget, more, width):
    shown = spread(order, MOST_PANELS[width])
    return head_maps.maps(width, table, shown, norm, SCALE, _note(order, shown, budget, more))


def _note(order, shown, budget, more):
    at = "" if budget is None else f" at budget {budget}"
    parts = [
        f"Divergence caused by the errors of a head’s query heads, to second order{at}, without pairs with"
        " other heads or of rows; seeds and texts averaged; the lowest sum first.",
        *more,
    ]
    if len(shown) < len(order):
        kept = f"{len(shown)} of {len(order)} methods, evenly spaced from the lowest loss to the highest"
        parts.append(f"{kept}; the others are in the CSV.")
    return " ".join(parts)


def _caption(table):
    """The share of the loss in each third of the layers, and the most costly head."""
    shares = table / table.sum()
    mean = shares.mean(axis=1)
    (layer, head), largest = mean.idxmax(), mean.max()
    told = f"most costly head: layer {layer} kv head {head} ({100 * largest:.0f} %)."
    by_layer = mean.groupby(level=0).sum()
    if len(by_layer) < len(THIRDS):
        return f"Mean over {count(table.shape[1], 'method')}: {told}"
    parts = np.array_split(by_layer.to_numpy(), len(THIRDS))
    words = ", ".join(
        f"{100 * part.sum():.0f} % on the {name}" for part, name in zip(parts, THIRDS, strict=True)
    )
    return (
        f"Share of the loss: {words} of the layers (mean over {count(table.shape[1], 'method')}); {told}"
        " Sums of single heads: they show how the model’s loss divides, not how large it is."
    )
