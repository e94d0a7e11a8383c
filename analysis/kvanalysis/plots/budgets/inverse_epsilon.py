"""The smallest budget from which on the error meets epsilon: by head at one epsilon, and over a range of
them.

Options of a configuration: measure (rel_err_out_mean), epsilon (of the heat map), epsilons (of the curves).
"""

from functools import partial
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

from ...budgets.search import MET, NOT_MET, epsilon_table, labelled, over_heads
from ...drawing.heat_panel import heat_panel
from ...drawing.saving import Picture, in_grid
from ...drawing.style import styles_for
from ...errors import FigureError
from ...stats.intervals import by_trace
from ...stats.words import oneshot_notes, replay_note
from .epsilon_axes import NEEDED, RULE, draw_needed
from .knee_figure import knee_picture

NAMES = {
    "rel_err_out_mean": "|z-o|/|o|, mean of ratios",
    "eps_spectral_mean": "|z-o|/(|x| |V|op), mean",
    "eps_frobenius_mean": "|z-o|/(|x| |V|F), mean",
}
SIGNS = "\u2264: the smallest budget tried; > and hatched: the largest does not suffice."
TITLE_WIDTH = 26  # characters
ROW_HEIGHT, LEAST_HEIGHT = 0.17, 0.9  # inches
PLACE = ("label", "layer", "kv_head")


def data(run):
    """(error measure, epsilon of the maps, [(trace, its rows, the budgets that its heads need)])."""
    measure = run.option("measure", "rel_err_out_mean")
    if measure not in NAMES:
        known = ", ".join(NAMES)
        raise FigureError(f"{run.config.path}: figure.options.measure: {measure} is not one of {known}")
    epsilon = float(run.option("epsilon", 0.2))
    epsilons = sorted({float(e) for e in run.option("epsilons", [0.05, 0.1, 0.2, 0.4])} | {epsilon})
    found = [(trace, rows, _needed(rows, measure, epsilons)) for trace, rows in by_trace(run.frame())]
    found = [each for each in found if not each[-1].empty]
    if not found:
        raise FigureError(
            f"{run.config.path}: no finished cell has a budget: inverse_epsilon shows the budget that"
            " an error needs; add `budget` and methods that take one"
        )
    return measure, epsilon, found


def _needed(rows, measure, epsilons):
    answers = labelled(epsilon_table(rows, measure, epsilons), rows)
    return answers[answers["status"].isin((MET, NOT_MET))]


def draw(_run, needed):
    measure, epsilon, found = needed
    return [picture for each in found for picture in _of_trace(*each, measure, epsilon)]


def _of_trace(trace, rows, needed, measure, epsilon):
    styles = styles_for(sorted(needed["label"].unique()), set(rows.loc[rows["oracle"], "label"]))
    note = " ".join([replay_note(rows), f"Error: {NAMES[measure]}.", *oneshot_notes(rows)])
    return [
        _heat_maps(needed[needed["epsilon"] == epsilon], epsilon, note, f"{trace}heads"),
        _curves(needed, styles, note, f"{trace}curves"),
        knee_picture(rows, measure, styles, note, f"{trace}knees"),
    ]


def _heat_maps(needed, epsilon, note, name):
    cells = _by_place(needed)
    low, high = cells["budget"].min(), cells["budget"].max()
    norm = LogNorm(low, high if high > low else 2 * low)
    panels = [_map(label, cells, norm) for label in sorted(needed["label"].unique())]
    text = f"{note} Epsilon = {epsilon:g}. {NEEDED} {SIGNS}"
    height = max(LEAST_HEIGHT, ROW_HEIGHT * needed["layer"].nunique())
    drawn = in_grid(panels, ([], []), text, on_page=4, in_column=2, height=height)
    title = f"Smallest budget with an error of at most {epsilon:g}, by layer and kv head [tokens]"
    return Picture(title, needed, drawn, f"{NEEDED} {_counts(needed)}", name)


def _by_place(needed):
    """One row per PLACE, over prompts: `budget`, which suffices for half of them, or the largest replayed one
    if none suffices; `smallest`: whether it is the smallest that was tried."""
    places = over_heads(needed, PLACE).set_index(list(PLACE))
    largest = needed[needed["status"] == NOT_MET].groupby(list(PLACE))["budget_below"].max()
    none = np.isinf(places["half"])
    return pd.DataFrame(
        {
            "budget": places["half"].where(~none, largest.astype(float).reindex(places.index)),
            "none": none,
            "smallest": 2 * places["at_smallest"] >= places["heads"],
        }
    )


def _map(label, cells, norm):
    layers, heads = (sorted(cells.index.unique(name)) for name in ("layer", "kv_head"))
    values = np.full((len(layers), len(heads)), np.nan)
    texts = np.full(values.shape, "", dtype=object)
    hatched = np.zeros(values.shape, dtype=bool)
    for (layer, head), cell in cells.loc[label].iterrows():
        at = layers.index(layer), heads.index(head)
        values[at], hatched[at] = cell["budget"], cell["none"]
        sign = ">" if cell["none"] else "\u2264" if cell["smallest"] else ""
        texts[at] = f"{sign}{cell['budget']:.0f}"

    def panel(axes):
        heat_panel(axes, values, texts, norm, [str(x) for x in layers], [str(x) for x in heads], hatched)
        axes.set_title("\n".join(wrap(label, TITLE_WIDTH)), fontsize=6.5)
        axes.set(xlabel="kv head", ylabel="layer")

    return panel


def _counts(needed):
    parts = []
    for row in over_heads(needed).itertuples():
        half = f", half of them at {row.half:.0f} tokens" if np.isfinite(row.half) else ""
        parts.append(
            f"{row.label}: of {row.heads} heads {row.at_smallest} meet it at the smallest budget,"
            f" {row.heads - row.met} miss it at the largest{half}"
        )
    return "; ".join(parts) + "."


def _curves(needed, styles, note, name):
    points = over_heads(needed)
    legend = ([style.handle() for style in styles.values()], list(styles))
    panel = partial(draw_needed, points, styles)
    drawn = in_grid([panel], legend, f"{note} {RULE}", height=2.4, titled=False)
    title, table = "Budget needed for an error of at most epsilon", points.replace(np.inf, np.nan)
    return Picture(title, table, drawn, name=name)
