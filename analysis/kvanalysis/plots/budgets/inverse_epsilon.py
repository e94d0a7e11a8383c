"""The smallest budget whose error stays below epsilon: by head at one epsilon, and over a range of epsilon.

Options of a configuration: measure (rel_err_out_mean), epsilon (of the heat map), epsilons (of the curves).
"""

from functools import partial
from textwrap import wrap

import numpy as np
from matplotlib.colors import LogNorm

from ...budgets.inverse import AT_MOST, MEASURES, MORE_THAN, needed_budgets, over_heads
from ...drawing.saving import Picture, in_grid
from ...drawing.style import styles_for
from ...errors import FigureError
from ...stats.intervals import by_trace
from ...stats.words import oneshot_notes, replay_note
from .epsilon_axes import draw_needed
from .heat_panel import heat_panel
from .knee_figure import knee_picture

NAMES = {
    "rel_err_out_mean": "|z-o|/|o|, mean of ratios",
    "eps_spectral_mean": "|z-o|/(|x| |V|op), mean",
    "eps_frobenius_mean": "|z-o|/(|x| |V|F), mean",
}
RULE = (
    "Needed: the smallest budget from which on every larger one that was run stays below epsilon; between two"
    " budgets by log-log interpolation; seeds averaged first."
)
CENSORED = {MORE_THAN: ">", AT_MOST: "\u2264"}
TITLE_WIDTH = 26  # characters
ROW_HEIGHT, LEAST_HEIGHT = 0.17, 0.9  # inches


def data(run):
    """(error measure, epsilon of the maps, rows of every trace, needed budgets of every trace)."""
    measure = run.option("measure", "rel_err_out_mean")
    if measure not in MEASURES:
        known = ", ".join(MEASURES)
        raise FigureError(f"{run.config.path}: figure.options.measure: {measure} is none of {known}")
    epsilon = float(run.option("epsilon", 0.2))
    epsilons = sorted({float(e) for e in run.option("epsilons", [0.05, 0.1, 0.2, 0.4])} | {epsilon})
    found = [(trace, rows, needed_budgets(rows, epsilons, measure)) for trace, rows in by_trace(run.frame())]
    found = [each for each in found if not each[-1].empty]
    if not found:
        raise FigureError(
            f"{run.config.path}: no finished cell has a budget: inverse_epsilon asks which budget"
            " an error needs; give `budget` and methods that take one"
        )
    return measure, epsilon, found


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
    low, high = needed["budget_needed"].min(), needed["budget_needed"].max()
    norm = LogNorm(low, high if high > low else 2 * low)
    cells = _by_place(needed)
    panels = [_map(label, cells, norm) for label in sorted(needed["label"].unique())]
    signs = "\u2264: the smallest that was run; > and hatched: none suffices."
    text = f"{note} Epsilon = {epsilon:g}. {RULE} {signs}"
    height = max(LEAST_HEIGHT, ROW_HEIGHT * needed["layer"].nunique())
    drawn = in_grid(panels, ([], []), text, on_page=4, in_column=2, height=height)
    title = f"Smallest budget with an error below {epsilon:g}, by layer and kv head [tokens]"
    return Picture(title, needed, drawn, f"{RULE} {_counts(needed)}", name)


def _by_place(needed):
    """One row per (label, layer, kv head): over prompts the median, and what is known of most of them."""
    return needed.groupby(["label", "layer", "kv_head"]).agg(
        budget=("budget_needed", "median"), state=("state", lambda states: states.mode().iloc[0])
    )


def _map(label, cells, norm):
    layers, heads = (sorted(cells.index.unique(name)) for name in ("layer", "kv_head"))
    values = np.full((len(layers), len(heads)), np.nan)
    texts = np.full(values.shape, "", dtype=object)
    hatched = np.zeros(values.shape, dtype=bool)
    for (layer, head), cell in cells.loc[label].iterrows():
        at = layers.index(layer), heads.index(head)
        values[at], hatched[at] = cell["budget"], cell["state"] == MORE_THAN
        texts[at] = f"{CENSORED.get(cell['state'], '')}{cell['budget']:.0f}"

    def panel(axes):
        heat_panel(axes, values, texts, norm, [str(x) for x in layers], [str(x) for x in heads], hatched)
        axes.set_title("\n".join(wrap(label, TITLE_WIDTH)), fontsize=6.5)
        axes.set(xlabel="kv head", ylabel="layer")

    return panel


def _counts(needed):
    parts = []
    for label, group in needed.groupby("label", sort=True):
        inside = group[~group["state"].isin(CENSORED)]
        median = (
            f", median of the others {inside['budget_needed'].median():.0f} tokens" if len(inside) else ""
        )
        least, most = ((group["state"] == state).sum() for state in (AT_MOST, MORE_THAN))
        parts.append(
            f"{label}: of {len(group)} heads {least} need at most the smallest budget, {most} more than the"
            f" largest{median}"
        )
    return "; ".join(parts) + "."


def _curves(needed, styles, note, name):
    points = over_heads(needed)
    suffices = points["state"] != MORE_THAN
    shown = points.assign(
        middle=points["budget_needed"].where(suffices, np.inf), hollow=points["state"] == AT_MOST
    )
    text = (
        f"{note} {RULE} Median over heads, bars: 95 % bootstrap of the median; one that leaves the axes"
        " ends beyond the budgets that were run. Hollow: at most the smallest budget. A curve ends where for"
        " half of the heads no budget that was run suffices."
    )
    panel = partial(draw_needed, points=shown, styles=styles, ends=points.loc[suffices, "budget_needed"])
    legend = ([style.handle() for style in styles.values()], list(styles))
    drawn = in_grid([panel], legend, text, height=2.4, titled=False)
    title, table = "Budget needed for an error of at most epsilon", points.replace(np.inf, np.nan)
    return Picture(title, table, drawn, name=name)
