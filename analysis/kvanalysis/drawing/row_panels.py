"""Panels that share labelled rows: one line for each method, with its name at the left."""

from textwrap import wrap

from ..stats.families import at_budget, at_budgets, budget_words, budgets_of, spread
from .log_ticks import DENSE, plain_log
from .style import GLYPH_EMS, RIGHT, finish, new_figure

ROW_HEIGHT = 0.165  # inches
NAME_TEXT = 5.8  # points
MOST_NAME = 1.65  # inches
NAME_PAD = 0.1
WIDEST = 1e4  # ratio of the ends of an error axis


def names_width(labels, width):
    """Inches that the names need, limited to a share of the figure."""
    longest = max((len(line) for label in labels for line in _lines(label)), default=1)
    return min(MOST_NAME, 0.42 * width, longest * NAME_TEXT * GLYPH_EMS / 72 + NAME_PAD)


def _lines(label, most=MOST_NAME):
    letters = round(most * 72 / (NAME_TEXT * GLYPH_EMS), 3)  # must fit the width that was computed for it
    return wrap(label, max(8, int(letters))) or [""]


def row_figure(width, wide, heights):
    """(figure, axes [rows of panels][wide]) with one row of panels for each number of labels in `heights`."""
    figure = new_figure(width)
    axes = figure.subplots(
        len(heights), wide, sharex=False, sharey="row", squeeze=False, height_ratios=heights
    )
    return figure, axes


def set_rows(axes, labels, width):
    """Writes the names from top to bottom in the order of `labels`; long names are cut into two lines."""
    room = names_width(labels, width) - NAME_PAD
    texts = ["\n".join(_lines(label, room)) for label in labels]
    axes.set_yticks(range(len(labels)), texts, fontsize=NAME_TEXT, linespacing=0.85)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, pad=2)
    axes.grid(axis="y", visible=False)


def set_left(figure, labels):
    """Makes room for the names; call after plotstyle.finish."""
    width = figure.get_size_inches()[0]
    figure.subplots_adjust(left=(names_width(labels, width) + 0.06) / width, right=1 - RIGHT / width)


def panels_by_budget(table, order, paint, x_label, most, legend, note):
    """The `draw` of a Picture: a panel for each of at most `most[width]` budgets, painted by `paint(axes,
    rows of the budget, names)`; names appear once, in `order`, those of the drawn budgets.

    `table` has label and the columns of stats.families.budget_columns; `legend` is (handles, texts).
    """

    def draw(width):
        budgets = spread(budgets_of(table), most[width])
        drawn = set(at_budgets(table, budgets)["label"])
        names = [label for label in order if label in drawn]
        figure, [panels] = row_figure(width, len(budgets), [len(names)])
        for axes, budget in zip(panels, budgets, strict=True):
            paint(axes, at_budget(table, budget), names)
            axes.set_title(budget_words(budget))
            axes.set_xlabel(x_label)
            axes.tick_params(axis="y", length=0)
        set_rows(panels[0], names, width)
        finish(figure, *legend, note, ROW_HEIGHT * len(names), wspace=0.11, top=0.26)
        set_left(figure, names)
        return figure

    return draw


def log_errors(axes, low, high):
    """Sets a logarithmic error axis from `low` to `high`, with ticks at 1, 2 and 5 if they fit.

    An error of zero cannot be shown; at most four decades are shown.
    """
    if not high > 0:
        return
    low = max(low, high / WIDEST)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    plain_log(axes.xaxis, (1, 3) if high / low > 12 else DENSE)
