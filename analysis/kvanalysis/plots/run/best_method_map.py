"""The method with the lowest error for every layer x kv head and budget, by colour and letter."""

from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.patches import Patch

from ...answer.measures import default_column
from ...drawing import head_maps
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, finish
from ...stats.families import (
    FAMILIES,
    at_budget,
    budget_columns,
    budget_words,
    budgets_of,
    families,
    head_table,
    present,
    spread,
)
from ...stats.paired import TIE
from .compared import compared_words, shares_note

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TIE_MARK = "="
PALE = (
    0.5,
    0.78,
)  # share of white in a cell's colour, so that letters stay readable; paler if a colour is used twice
PANELS = {COLUMN_WIDTH: 2, PAGE_WIDTH: 4}
MOST_BUDGETS = 8


def data(run):
    """A row for each head, budget and family (stats.families) in which at least two methods compete:
    the best method, its error, the runner-up, ties, and the letter of the best method."""
    table = _table(families(run.rows), default_column(run.rows))
    return None if table.empty else table.assign(letter=table["best"].map(_letters(table)))


def draw(run, table):
    paint = partial(_figure, run, table, _letters(table))
    title = "Best method by layer and head"
    return [Picture(title, table, paint, _caption(table), name="best_method_map")]


def _table(rivals, measure):
    parts = []
    for family in present(rivals):
        own = rivals[rivals["family"] == family]
        for budget in budgets_of(own):
            errors = head_table(at_budget(own, budget), measure)
            if errors.shape[1] > 1:
                parts.append(_winners(errors, measure).assign(family=family, **budget_columns(budget)))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _winners(errors, measure):
    found = []
    for (layer, head), values in errors.iterrows():
        values = values.dropna().sort_values(kind="stable")
        best = values.iloc[0]
        # A win needs a difference of more than 1 %, as in kvanalysis.stats.paired.
        tied = [label for label, error in values.iloc[1:].items() if not best < error * (1 - TIE)]
        found.append(
            {
                "layer": layer,
                "kv_head": head,
                "best": values.index[0],
                measure: best,
                "runner_up": values.index[1] if len(values) > 1 else "",
                "runner_up_error": values.iloc[1] if len(values) > 1 else np.nan,
                "tied": " | ".join(tied),
                "n_methods": len(values),
            }
        )
    return pd.DataFrame(found)


def _letters(table):
    """A letter for each label that is best for some head, the most frequent first."""
    counts = table["best"].value_counts()
    order = sorted(counts.index, key=lambda label: (-counts[label], label))
    return {label: LETTERS[i] if i < len(LETTERS) else f"{i}" for i, label in enumerate(order)}


def _figure(run, table, letters, width):
    panels, colours = [], _colours(letters, run.styles)
    for family in [family for family in FAMILIES if family in set(table["family"])]:
        own = table[table["family"] == family]
        panels += [(family, budget) for budget in spread(budgets_of(own), MOST_BUDGETS)]
    titles = [f"{family}, {budget_words(budget)}" for family, budget in panels]
    places = pd.MultiIndex.from_frame(table[["layer", "kv_head"]])
    shape = head_maps.grid(width, places, titles, min(PANELS[width], _most(panels)))
    figure, axes_list = head_maps.new_panels(width, shape, titles)
    for axes, (family, budget) in zip(axes_list, panels, strict=True):
        cells = at_budget(table[table["family"] == family], budget)
        _panel(axes, cells, letters, colours, shape)
    wins = table["best"].value_counts()
    texts = [
        f"{letter}  {label} (best in {wins[label]} of {_chances(table, label)})"
        for label, letter in letters.items()
    ]
    handles = [Patch(facecolor=colour) for colour in colours]
    finish(figure, handles, texts, _note(run, table), shape.axes_height, **head_maps.layout(shape))
    return figure


def _most(panels):
    """The number of panels per row: one family in one row if it fits."""
    return max(sum(family == other for other, _ in panels) for family, _ in panels)


def _chances(table, label):
    """The number of cells in the families in which the label was best for some head."""
    return int(table["family"].isin(set(table.loc[table["best"] == label, "family"])).sum())


def _panel(axes, cells, letters, colours, shape):
    order = list(letters)
    at = cells.set_index(["layer", "kv_head"])
    numbers = head_maps.matrix(
        at["best"].map({label: i for i, label in enumerate(order)}).astype(float), shape
    )
    axes.imshow(
        np.ma.masked_invalid(numbers),
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=len(order) - 0.5,
        aspect="auto",
    )
    if not head_maps.fits(2, shape):
        return
    for (layer, head), cell in at.iterrows():
        text = letters[cell["best"]] + (TIE_MARK if cell["tied"] else "")
        head_maps.write(axes, shape.heads.index(head), shape.layers.index(layer), text)


def _colours(labels, styles):
    """{label: its colour in the other figures mixed with white, paler if an earlier label has that
    colour}."""
    found, used = [], Counter()
    for label in labels:
        colour = styles[label].colour
        white = PALE[min(used[colour], len(PALE) - 1)]
        used[colour] += 1
        found.append(tuple(white + (1 - white) * part for part in to_rgb(colour)))
    return found


def _note(run, table):
    parts = [f"Lowest {compared_words(run.rows)}; {TIE_MARK}: another method within {TIE:.0%}."]
    parts += shares_note(run.rows)
    parts += [
        f"{family}: {meaning}." for family, meaning in FAMILIES.items() if family in set(table["family"])
    ]
    parts.append(
        "Methods compete only where budgets have one meaning; oracles and methods without a budget do not"
        " compete."
    )
    left_out = sorted(set(run.rows["label"]) - set(table["best"]))
    if left_out:
        parts.append(f"Best for no head: {', '.join(left_out)}.")
    return " ".join(parts)


def _caption(table):
    texts = []
    for family, own in table.groupby("family", sort=False):
        for budget in budgets_of(own):
            cells = at_budget(own, budget)
            wins = cells["best"].value_counts()
            named = ", ".join(f"{label} {wins[label]}" for label in wins.index[:3])
            ties = int((cells["tied"] != "").sum())
            at = f"{family} {budget_words(budget, 'B=')}"
            texts.append(f"{at}: {named} of {len(cells)} heads, {ties} within {TIE:.0%}")
    return "Heads won (first three): " + "; ".join(texts) + "."
