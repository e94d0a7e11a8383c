"""Panels that share labelled rows: one line for each method, its name at the left."""

from textwrap import wrap

from .plotstyle import GLYPH_EMS, RIGHT, new_figure

ROW_HEIGHT = 0.165  # inches
NAME_TEXT = 5.8  # points
MOST_NAME = 1.65  # inches
NAME_PAD = 0.1


def names_width(labels, width):
    """Inches that the names need, at most a share of the figure."""
    longest = max((len(line) for label in labels for line in _lines(label)), default=1)
    return min(MOST_NAME, 0.42 * width, longest * NAME_TEXT * GLYPH_EMS / 72 + NAME_PAD)


def _lines(label, most=MOST_NAME):
    return wrap(label, max(8, int(most * 72 / (NAME_TEXT * GLYPH_EMS)))) or [""]


def row_figure(width, wide, heights):
    """(figure, axes [rows of panels][wide]) with one row of panels for each number of labels in `heights`."""
    figure = new_figure(width)
    axes = figure.subplots(
        len(heights), wide, sharex=False, sharey="row", squeeze=False, height_ratios=heights
    )
    return figure, axes


def set_rows(axes, labels, width):
    """Names from top to bottom in the order of `labels`; long ones are cut into two lines."""
    room = names_width(labels, width) - NAME_PAD
    texts = ["\n".join(_lines(label, room)) for label in labels]
    axes.set_yticks(range(len(labels)), texts, fontsize=NAME_TEXT, linespacing=0.85)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, pad=2)
    axes.grid(axis="y", visible=False)


def set_left(figure, labels):
    """Room for the names; call after plotstyle.finish."""
    width = figure.get_size_inches()[0]
    figure.subplots_adjust(left=(names_width(labels, width) + 0.06) / width, right=1 - RIGHT / width)
