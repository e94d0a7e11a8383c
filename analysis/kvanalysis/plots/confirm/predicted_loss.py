"""The loss predicted from the gradient in a trace against the model's measured loss, for a results folder
with projections and confirm.csv."""

from functools import partial

import numpy as np

from ...data.confirmed import confirmed
from ...drawing.log_ticks import plain_log, subs_for
from ...drawing.panel_grid import fewest_empty, finish_grid, label_outer, panel_grid
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, DASHED, PAGE_WIDTH, new_figure
from ...loss.agreement import SMALL, agreement, points
from ...predict.words import shown_texts, shown_words, two
from ...stats.words import count

ACROSS = {COLUMN_WIDTH: (1,), PAGE_WIDTH: (3, 2)}
PANEL_HEIGHT = {COLUMN_WIDTH: 2.3, PAGE_WIDTH: 2.05}  # inches; about square
PANEL_GAP, WSPACE = 0.3, 0.07  # shares of a panel
EQUAL_COLOUR = "#555555"
MARGIN = 1.3  # room beyond the outermost points, as a factor
WIDEST = 2000  # largest ratio of losses on the axes
TITLE_ROOM = 0.36  # inches; two lines


def data(run):
    """(points, {prompt: Agreement or None}); None without confirm.csv, or if no instance is both predicted
    and measured."""
    if confirmed(run.rows, whole=False) is None or run.losses is None:
        return None
    found = points(run.losses.table)
    if not _with_loss(found).any():
        return None
    oracle = run.rows.drop_duplicates("label").set_index("label")["oracle"]
    found = found.assign(oracle=found["label"].map(oracle).astype(bool))
    by_prompt = found.groupby("prompt", sort=True)
    return found, {prompt: agreement(own["kl"], own["kl_mean"]) for prompt, own in by_prompt}


def _with_loss(found):
    return (found["kl"] > 0) & (found["kl_mean"] > 0)


def _places(found):
    """Which points are drawn: losses that are only rounding would take most of the axes."""
    least = found[["kl", "kl_mean"]].max().max() / WIDEST
    return _with_loss(found) & (found["kl"] >= least) & (found["kl_mean"] >= least)


def draw(run, found):
    """A panel for each text."""
    table, agreements = found
    prompts = list(agreements)
    ranks = np.array([np.nan if each is None else each.spearman for each in agreements.values()])
    shown = [prompts[place] for place in shown_texts(prompts, ranks)]
    note = f"{shown_words(shown, len(prompts))} {_note(table)}".strip()
    paint = partial(_figure, table[_places(table)], agreements, shown, run.styles, note)
    return [Picture("Predicted loss against the model’s own", table, paint, _caption(agreements),
                    name="predicted_loss")]  # fmt: skip


def _figure(table, agreements, shown, styles, note, width):
    across = fewest_empty(len(shown), ACROSS[width])
    figure = new_figure(width)
    panels = panel_grid(figure, len(shown), across, sharex=True, sharey=True)
    for axes, prompt in zip(panels, shown, strict=True):
        _panel(axes, table[table["prompt"] == prompt], styles)
        axes.set_title(_title(prompt, agreements[prompt]))
    _set_axes(panels[0], table)
    label_outer(panels, across, "predicted [nats/token]", "measured KL [nats/token]")
    order = list(table.groupby("label")["kl"].mean().sort_values(ascending=False).index)
    legend = ([styles[label].handle(linewidth=0.7) for label in order], order)
    height = PANEL_HEIGHT[width]
    finish_grid(figure, legend, note, len(shown), across, height, PANEL_GAP, WSPACE, top=TITLE_ROOM)
    return figure


def _panel(axes, own, styles):
    for label, rows in own.groupby("label", sort=True):
        rows = rows.sort_values("budget_tokens")
        style = styles[label]
        known = rows["kl_low"].notna().to_numpy()
        axes.hlines(rows["kl_mean"][known], rows["kl_low"][known], rows["kl_high"][known], style.colour,
                    linewidth=0.4, alpha=0.45, zorder=1.5)  # fmt: skip
        face = "white" if rows["oracle"].any() else style.colour
        at = rows["kl"], rows["kl_mean"]
        axes.plot(*at, color=style.colour, linestyle=style.dashes, linewidth=0.5, alpha=0.6)
        axes.plot(*at, style.marker, color=style.colour, markersize=3, markerfacecolor=face)
    axes.axline((1, 1), slope=1, color=EQUAL_COLOUR, linestyle=DASHED, linewidth=0.6, zorder=1)


def _set_axes(axes, table):
    """One scale for both axes and all texts, so that correct predictions are on the diagonal."""
    values = table[["kl", "kl_mean"]].to_numpy()
    limits = (values.min() / MARGIN, values.max() * MARGIN)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        axes.set(**{f"{name}scale": "log", f"{name}lim": limits})
        plain_log(axis, subs_for(values))


def _title(prompt, found):
    if found is None:
        return prompt
    return f"{prompt}\nrank correlation {two(found.spearman)}{_factor(found)}"


def _factor(found):
    return "" if np.isnan(found.factor) else f", factor {found.factor:.2f}"


def _note(table):
    parts = [
        f"{count(len(table), 'instance')} that were both predicted and run. Points of a method are its"
        " budgets; lines: the 95 % interval of the prediction. Dashed: prediction equals measurement."
    ]
    if table["oracle"].any():
        parts.append("Hollow: oracles, which see the future.")
    lost = int((~_places(table)).sum())
    if lost:
        parts.append(f"{lost} with almost no loss are only in the CSV.")
    return " ".join(parts)


def _ratio(found):
    factor = _factor(found)
    return f"{factor}, scatter ×{found.scatter:.2f}" if factor else ", too few for a factor"


def _caption(agreements):
    texts = [
        f"{prompt}: rank correlation {two(each.spearman)}{_ratio(each)} ({count(each.instances, 'instance')})"
        for prompt, each in agreements.items()
        if each is not None
    ]
    told = f"{'; '.join(texts)}." if texts else "Too few instances per text for a rank correlation."
    return (
        f"{told} Factor: median of measured over predicted KL, for instances measured below {SMALL:g} nat;"
        " scatter: exp of the standard deviation of its logarithm."
    )
