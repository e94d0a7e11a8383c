"""Many methods in a list, sorted by their error, with a panel for each class of bytes."""

from functools import partial

import numpy as np

from ...drawing.budget_axes import set_error_axis
from ...drawing.log_ticks import plain_log, subs_for
from ...drawing.panel_grid import finish_grid, panel_grid
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, GLYPH_EMS, PAGE_WIDTH, new_figure
from ...stats.families import ONESHOT, PHASES

WHOLE = {"prompt_share": "prompt’s full cache", "peak_share": "full cache"}
EDGES = (0, 10, 20, 40, 70, np.inf)  # per cent of the full cache; an upper edge belongs to its class
MOST_ROWS = 16  # rows of a panel
ROW_HEIGHT, NAME_SIZE = 0.118, 5.8  # inches, points
LETTERS = 35  # letters of a name
ACROSS = {COLUMN_WIDTH: 1, PAGE_WIDTH: 2}
FEWER = (1, 3)  # ticks on a narrow axis: these times powers of ten
MARGIN = 1.15  # factor beyond the smallest and the largest error
TITLES = 0.62  # inches between two rows of panels: ticks, label, title


def classes_picture(title, points, styles, caption, name, words):
    """The Picture of `points` from plots.run.error_vs_bytes; `words` name the measure."""
    table = class_rows(points)
    note = (
        f"The lowest error of each method in the class; at most {MOST_ROWS} methods of a class, the"
        " others are in the CSV. Bars: 95 % intervals. Black and grey: oracles. Bytes: everything that is"
        " stored for one kv head, at the peak or after the prompt is cut, as the panels’ titles say."
    )
    return Picture(title, table, partial(_figure, table, styles, note, words), caption, name=name)


def class_rows(points):
    """The point with the lowest error for each class of bytes and label, sorted; columns of `points` and
    `bytes_class`, the class in words."""
    size = "prompt_share" if "prompt_share" in points else "peak_share"
    shares = 100 * points[size].to_numpy(float)
    place = np.clip(np.searchsorted(EDGES, shares - 1e-9, side="left"), 1, len(EDGES) - 1)
    rows = points.assign(place=place).sort_values(["place", "loss"], kind="stable")
    rows = rows.drop_duplicates(["place", "label"]).reset_index(drop=True)
    return rows.assign(bytes_class=[class_words(each, WHOLE[size]) for each in rows.pop("place")])


def class_words(place, whole="full cache"):
    """The words for the class that ends at EDGES[place]; `whole`: what is 100 %."""
    low, high = EDGES[place - 1], EDGES[place]
    return f"above {low} % of {whole}" if np.isinf(high) else f"{low} to {high} % of {whole}"


def _figure(table, styles, note, words, width):
    classes = list(dict.fromkeys(table["bytes_class"]))
    shown = [table[table["bytes_class"] == words].head(MOST_ROWS) for words in classes]
    figure, across = new_figure(width), min(ACROSS[width], len(classes))
    tallest = [max(map(len, shown[first : first + across])) for first in range(0, len(shown), across)]
    panels = panel_grid(figure, len(classes), across, sharex=True, height_ratios=[n + 1 for n in tallest])
    for axes, title, rows in zip(panels, classes, shown, strict=True):
        _panel(axes, rows, styles, tallest[axes.get_subplotspec().rowspan.start])
        axes.set_title(title)
        axes.tick_params(labelbottom=True)
    _error_axis(panels[0], table, width)
    for axes in panels[-across:]:
        axes.set_xlabel(words)
    height = ROW_HEIGHT * (sum(tallest) / len(tallest) + 1)
    room = 0.25 + LETTERS * NAME_SIZE * GLYPH_EMS / 72
    wspace = room / ((width - across * room) / across - 0.1)
    finish_grid(figure, ([], []), note, len(classes), across, height, gap=TITLES / height, wspace=wspace)
    figure.subplots_adjust(left=room / width)
    return figure


def _panel(axes, rows, styles, places):
    for place, row in enumerate(rows.itertuples()):
        style = styles[row.label]
        axes.plot([row.loss_low, row.loss_high], [place, place], color=style.colour, linewidth=1)
        axes.plot(row.loss, place, style.marker, color=style.colour, markersize=3.5)
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows.itertuples()], fontsize=NAME_SIZE)
    axes.set_ylim(places - 0.2, -0.8)  # the lowest error on top


def _name(row):
    text = f"{row.label}, {PHASES[ONESHOT]}" if row.family == ONESHOT else row.label
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _error_axis(axes, table, width):
    """Sets the error axis, along x, on the scale that `set_error_axis` chooses."""
    errors = table["loss"]
    errors = errors[errors < 1] if (errors < 1).any() else errors
    set_error_axis(axes, errors, "x")
    if axes.get_xscale() == "log":
        plain_log(axes.xaxis, subs_for(errors) if width > COLUMN_WIDTH else FEWER)
        axes.set_xlim(left=errors.min() / MARGIN)
    axes.set_xlim(right=1 if errors.max() < table["loss"].max() else errors.max() * MARGIN)
