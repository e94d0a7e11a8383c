"""The model's loss against the offline error, for a results folder that holds confirm.csv."""

from functools import partial
from textwrap import fill

import numpy as np

from ...drawing.log_ticks import DECADES, DENSE, plain_log
from ...drawing.panel_grid import fewest_empty, finish_grid, panel_grid
from ...drawing.point_labels import label_points
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, axes_width, new_figure
from ...predict.best import choice_correlations, shown_choices
from ...predict.exceptions import MARGIN, exceptions, residuals
from ...predict.instances import LOSS, trace_instances
from ...predict.measures import BY_NAME, Measure
from ...predict.words import (
    METHODS_NOTE,
    confirmed_note,
    correlation_text,
    same_words,
    shown_texts,
    shown_words,
    two,
)
from .loss_axes import LINEAR, set_loss_axis

ACROSS = {COLUMN_WIDTH: (1,), PAGE_WIDTH: (3, 2)}
PANEL_HEIGHT = {COLUMN_WIDTH: 1.9, PAGE_WIDTH: 2.1}  # inches
PANEL_GAP = 0.42  # share of a panel's height
LETTERS = 17  # letters of an axis label per inch
WIDE = 1.3  # decades; wider axes only have ticks at powers of ten
NO_UNIT = Measure.unit
TOP = 0.24  # inches above the panels: a title of one line
BELOW, LINE = 0.42, 0.13  # inches below the panels: ticks and a label; a further line of the label
WSPACE = 0.07  # share of a panel's width
LABELS = 5  # exceptions named in a panel, one for each method
SHOWN = ["prompt", "label", "method", "family", "budget_tokens", "oracle", "n_seeds", "n_rows", "loss_full",
         "loss", LOSS, "kl_mean", "top1_lost"]  # fmt: skip


def data(run):
    """(instances, choices of measures, their correlations with the loss); None without confirm.csv, or if
    no text has enough instances. The measures: the best predictor and the engine's main measure."""
    instances = trace_instances(run.rows, run.losses)
    choices = shown_choices(instances) if instances else []
    return (instances, choices, choice_correlations(instances, choices)) if choices else None


def draw(run, found):
    """A panel for each text and measure."""
    instances, choices, ranks = found
    table = _table(instances, choices)
    shown = shown_texts(ranks.prompts, ranks.rho[:, 0, 0])
    note = f"{shown_words(shown, len(ranks.prompts))} {_note(instances, table)}".strip()
    names, styles = _exceptional(instances, choices), run.styles
    paint = partial(_figure, table, choices, ranks, shown, names, styles, note)
    caption = _caption(choices, ranks)
    return [Picture("Offline error against loss", table, paint, caption, name="loss_against_error")]


def _table(instances, choices):
    """A row per instance with the value of each choice and its residual, as error_1, residual_1, ..."""
    table = instances.table[SHOWN].copy()
    for number, each in enumerate(choices, 1):
        table[f"measure_{number}"] = f"{each.measure}, {each.weighting}"
        table[f"error_{number}"], table[f"residual_{number}"] = each.values, residuals(instances, each.values)
    return table


def _exceptional(instances, choices):
    """[{prompt: [(label, budget)]}] for each choice: for every label in exceptional pairs, the instance
    farthest from the monotone fit, the farthest first."""
    named = []
    for each in choices:
        pairs, left = exceptions(instances, each.values), np.abs(residuals(instances, each.values))
        far = instances.table.assign(left=left).sort_values("left", ascending=False, kind="stable")
        members = {
            (pair.prompt, label, pair.budget_tokens)
            for pair in pairs.itertuples() for label in (pair.less_error, pair.less_loss)
        }  # fmt: skip
        chosen = {}
        for row in far.itertuples():
            own = chosen.setdefault(row.prompt, [])
            new = row.label not in [label for label, _ in own]
            if new and (row.prompt, row.label, row.budget_tokens) in members and len(own) < LABELS:
                own.append((row.label, row.budget_tokens))
        named.append(chosen)
    return named


def _figure(table, choices, ranks, shown, names, styles, note, width):
    across = fewest_empty(len(shown), ACROSS[width])
    figure = new_figure(width)
    # Every measure begins in a new row, so that its panels of one text are in one column.
    rows = -(-len(shown) // across)
    panels = panel_grid(figure, rows * across * len(choices), across)
    letters = int(axes_width(width) / across * LETTERS)
    places = []
    for number, each in enumerate(choices):
        own_panels = panels[number * rows * across : (number + 1) * rows * across]
        for axes in own_panels[len(shown) :]:
            axes.remove()
        for column, (axes, text) in enumerate(zip(own_panels, shown, strict=False)):
            prompt = ranks.prompts[text]
            own = table[table["prompt"] == prompt]
            _panel(axes, own, f"error_{number + 1}", styles)
            _set_axes(axes, table, f"error_{number + 1}", column % across == 0)
            _title(axes, prompt, ranks.rho[text, number, 0], letters)
            axes.set_xlabel(_axis_label(each, letters), labelpad=1)
            places.append((axes, own, f"error_{number + 1}", names[number].get(prompt, [])))
    legend = ([styles[label].handle(linewidth=0.7) for label in _legend_order(table)], _legend_order(table))
    lines = max(1 + axes.get_xlabel().count("\n") for axes, *_ in places)
    below = BELOW + LINE * (lines - 1)
    height = PANEL_HEIGHT[width]
    titles = max(axes.get_title(loc="left").count("\n") for axes, *_ in places)
    top = TOP + LINE * titles
    finish_grid(figure, legend, note, len(panels), across, height, PANEL_GAP, WSPACE, below, top)
    for place in places:
        _name(*place)
    return figure


def _panel(axes, own, error, styles):
    for label, rows in own.groupby("label", sort=True):
        rows = rows[rows[error] > 0].sort_values("budget_tokens")
        at, loss, style = rows[error], rows[LOSS], styles[label]
        face = "white" if rows["oracle"].any() else style.colour
        axes.plot(at, loss, color=style.colour, linestyle=style.dashes, linewidth=0.5, alpha=0.6)
        axes.plot(at, loss, style.marker, color=style.colour, markersize=3, markerfacecolor=face)


def _set_axes(axes, table, error, labelled):
    """All texts share their axes, so that panels compare."""
    positive = table.loc[table[error] > 0, error]
    axes.set_xscale("log")
    axes.set_xlim(positive.min() / 1.3, positive.max() * 1.3)
    plain_log(axes.xaxis, DECADES if np.log10(positive.max() / positive.min()) > WIDE else DENSE)
    set_loss_axis(axes, table[LOSS])
    axes.tick_params(labelleft=labelled)
    if labelled:
        axes.set_ylabel("loss increase [nats/token]")


def _title(axes, prompt, rho, letters):
    text = f"{prompt}: rank correlation {two(rho)}" if np.isfinite(rho) else prompt
    axes.set_title(text if len(text) <= letters else text.replace(": ", "\n", 1))


def _axis_label(choice, letters):
    unit = BY_NAME[choice.measure].unit
    return fill(choice.words if unit == NO_UNIT else f"{choice.words}\u00a0[{unit}]", letters)


def _legend_order(table):
    """Largest mean loss first, like the points."""
    return list(table.groupby("label")[LOSS].mean().sort_values(ascending=False).index)


def _name(axes, own, error, named):
    spots = own.set_index(["label", "budget_tokens"])[[error, LOSS]]
    wanted = [(*spots.loc[name], f"{name[0]} {name[1]}") for name in named if name in spots.index]
    label_points(
        axes, wanted, list(own.loc[own[error] > 0, [error, LOSS]].itertuples(index=False, name=None))
    )


def _note(instances, table):
    parts = [confirmed_note(instances), "Points of a method: its budgets."]
    if table["oracle"].any():
        parts.append("Hollow: oracles, which see the future; not in the correlation.")
    parts += [same_words(instances)] if instances.same else []
    exact = int((table[[name for name in table if name.startswith("error_")]] <= 0).any(axis=1).sum())
    if exact:
        parts.append(f"{exact} without any error cannot be shown on the axis.")
    parts.append(
        f"Named: methods of pairs at one budget with errors {MARGIN}-fold apart and losses in the opposite"
        f" order, beyond noise. The scale of losses is linear below {LINEAR} nats."
    )
    return " ".join(parts)


def _caption(choices, ranks):
    texts = [
        f"{each.words}: rank correlation {correlation_text(ranks, place)}"
        for place, each in enumerate(choices)
    ]
    same = " The engine’s main measure is the best." if len(choices) == 1 and choices[0].is_main else ""
    return f"{'; '.join(texts)}.{same} {METHODS_NOTE}"
