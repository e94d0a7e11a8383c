"""Maps of layer x kv head, many on one page: geometry, cells, numbers and the shared scale."""

import math
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator

from ..stats.families import spread
from .log_ticks import plain_log, ticks_at
from .style import GLYPH_EMS, PAGE_WIDTH, TOP, axes_width, finish, new_figure

CELL_TEXT, TICK_TEXT, TITLE_TEXT, SCALE_TEXT = 5.6, 6, 6.3, 6.5  # points
CELL_HEIGHT, LEAST_CELL_HEIGHT = 0.135, 0.04  # inches
PAGE_HEIGHT = 7.5  # inches; taller maps get lower cells
LOG_RATIO = 5
COLOURS = "cividis_r"  # dark means large; perceptually uniform, and readable for colour-blind readers
SCALE_WIDTH, SCALE_ROOM = 0.09, 0.70  # inches; room for ticks and a label of two lines
TICK_ROOM = 0.16  # inches of a tick label on a colour bar
TICK_HEIGHT = 0.11  # inches; lower cells lose some of their tick labels
GAP_INCHES = 0.14


@dataclass(frozen=True)
class Grid:
    """Panels in rows. Lengths in inches; `title` is the room above a panel."""

    high: int
    wide: int
    panel_width: float
    cell_height: float
    layers: list
    heads: list
    title: float

    @property
    def panel_height(self):
        return self.cell_height * len(self.layers)

    @property
    def axes_height(self):
        return self.high * self.panel_height + (self.high - 1) * (self.title + 0.16)

    @property
    def hspace(self):
        return (self.title + 0.16) / self.panel_height


def grid(width, places, titles, wide, room=0.0):
    """The Grid for one panel per title; `places`: index of (layer, kv_head); `room`: inches at the right."""
    layers, heads = (sorted(places.unique(level)) for level in (0, 1))
    wide = max(1, min(wide, len(titles)))
    high = math.ceil(len(titles) / wide)
    panel = (axes_width(width) - room - (wide - 1) * GAP_INCHES) / wide
    lines = max(len(title_lines(title, panel)) for title in titles)
    cell = np.clip(PAGE_HEIGHT / (high * len(layers)), LEAST_CELL_HEIGHT, CELL_HEIGHT)
    return Grid(high, wide, panel, float(cell), layers, heads, 0.08 + lines * TITLE_TEXT * 1.25 / 72)


def title_lines(title, panel_width):
    return wrap(title, max(6, int(panel_width * 72 / (TITLE_TEXT * GLYPH_EMS)))) or [""]


def new_panels(width, shape, titles):
    """(figure, axes for every title); places without a title are removed."""
    figure = new_figure(width)
    panels = figure.subplots(shape.high, shape.wide, sharex=True, sharey=True, squeeze=False)
    used = []
    for index, axes in enumerate(panels.flat):
        if index >= len(titles):
            axes.remove()
            continue
        axes.set_title(
            "\n".join(title_lines(titles[index], shape.panel_width)), loc="left", pad=2.5, fontsize=TITLE_TEXT
        )
        set_ticks(axes, shape)
        if index % shape.wide == 0:
            axes.set_ylabel("layer", labelpad=2)
        if index + shape.wide >= len(titles):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("kv head", labelpad=1.5)
        used.append(axes)
    return figure, used


def maps(width, table, shown, norm, scale, note):
    """The figure with a panel for each label in `shown`: columns of `table` [(layer, kv_head), labels] on one
    colour scale with the label `scale`, and `note` below."""
    heads = table.index.unique(1).size
    wide = (5 if heads <= 4 else 3 if heads <= 8 else 2) if width == PAGE_WIDTH else (2 if heads <= 4 else 1)
    shape = grid(width, table.index, shown, wide, room=SCALE_ROOM)
    figure, panels = new_panels(width, shape, shown)
    for axes, label in zip(panels, shown, strict=True):
        draw_numbers(axes, matrix(table[label], shape), norm, shape, short)
    finish(figure, [], [], note, shape.axes_height, **layout(shape))
    add_scale(figure, norm, scale)
    return figure


def layout(shape):
    """Keyword arguments of plotstyle.finish for these panels."""
    return {"hspace": shape.hspace, "wspace": GAP_INCHES / shape.panel_width, "top": TOP + shape.title - 0.06}


def set_ticks(axes, shape, size=TICK_TEXT):
    """Sets layer and kv head numbers as tick labels in `size` points, as many as fit."""
    every = max(1, math.ceil(TICK_HEIGHT * size / TICK_TEXT / shape.cell_height))
    rows = range(0, len(shape.layers), every)
    axes.set_yticks(rows, [str(shape.layers[i]) for i in rows])
    fits = max(1, math.ceil(len(shape.heads) * 0.14 * size / TICK_TEXT / shape.panel_width))
    columns = range(0, len(shape.heads), fits)
    axes.set_xticks(columns, [str(shape.heads[i]) for i in columns])
    axes.tick_params(length=0, pad=2, labelsize=size)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def matrix(values, shape):
    """[layers, heads] of a series indexed by (layer, kv_head), NaN where it has no value."""
    return values.unstack().reindex(index=shape.layers, columns=shape.heads).to_numpy(dtype=float)


def shared_norm(values):
    """One colour scale for all panels: logarithmic if values differ by a ratio of 5 or more, else linear from
    0."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    if len(positive) == len(values) and len(values) and values.max() / values.min() >= LOG_RATIO:
        return LogNorm(values.min(), values.max())
    return Normalize(0, max(values.max(initial=0), 1e-12))


def draw_numbers(axes, numbers, norm, shape, show, size=CELL_TEXT):
    """Colours and, where they fit, `show(number)`; a place without a number stays white with a dash.
    Returns the image."""
    painted = np.ma.masked_invalid(numbers)
    image = axes.imshow(painted, cmap=COLOURS, norm=norm, aspect="auto", interpolation="nearest")
    texts = [[show(number) if np.isfinite(number) else "–" for number in row] for row in numbers]
    longest = max(len(text) for row in texts for text in row)
    if not fits(longest, shape, size):
        return image
    for (row, column), number in np.ndenumerate(numbers):
        shade = image.cmap(norm(number)) if np.isfinite(number) else (1, 1, 1, 1)
        write(axes, column, row, texts[row][column], _on(shade), size)
    return image


def fits(letters, shape, size=CELL_TEXT):
    wide = shape.panel_width / len(shape.heads) >= letters * size * GLYPH_EMS / 72 + 0.03
    return wide and shape.cell_height >= size * 1.15 / 72


def write(axes, column, row, text, colour="black", size=CELL_TEXT):
    axes.text(column, row, text, ha="center", va="center_baseline", fontsize=size, color=colour)


def _on(shade):
    red, green, blue, _ = shade
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def add_scale(figure, norm, text):
    """Adds the colour scale at the right of the panels, its label in lines that fit; call after
    plotstyle.finish."""
    width, height = figure.get_size_inches()
    room = figure.subplotpars
    figure.subplots_adjust(right=1 - SCALE_ROOM / width)
    place = [1 - (SCALE_ROOM - 0.12) / width, room.bottom, SCALE_WIDTH / width, room.top - room.bottom]
    bar = figure.colorbar(ScalarMappable(norm, COLOURS), cax=figure.add_axes(place))
    plain_scale(bar)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(labelsize=TICK_TEXT, length=2, pad=1.5)
    bar.ax.tick_params(which="minor", length=1)
    # The label is centred on the middle of the bar, so the nearer end limits its length.
    length = height * min(2 - room.top - room.bottom, room.top + room.bottom)
    lines = wrap(text, max(8, int(length * 72 / (SCALE_TEXT * GLYPH_EMS))))
    bar.set_label("\n".join(lines), fontsize=SCALE_TEXT, labelpad=2, linespacing=0.95)


def plain_scale(bar):
    """Sets a few plain numbers on a colour bar, fewer on a low one."""
    if isinstance(bar.norm, LogNorm):
        plain_log(bar.ax.yaxis)
        low, high = bar.norm.vmin, bar.norm.vmax
        ticks = [tick for tick in bar.ax.yaxis.get_majorticklocs() if low <= tick <= high]
        room = bar.ax.get_window_extent().height / bar.ax.figure.dpi
        if room < TICK_ROOM * len(ticks):
            ticks_at(bar.ax.yaxis, spread(ticks, max(2, int(room / TICK_ROOM))))
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))


def short(number):
    """Two digits for a cell: .12, 1.6, 16, 1.2e-4 as 1e-4."""
    if number == 0:
        return "0"
    if number < 0.0095:
        return f"{number:.0e}".replace("e-0", "e-")
    text = f"{number:.2f}" if number < 0.995 else f"{number:.1f}" if number < 9.95 else f"{number:.0f}"
    return text.removeprefix("0")
