"""Small panels of one figure: a grid without empty places, and its size."""

import math

from .style import finish, new_figure

PANEL_GAP = 0.42  # share of a panel's height: its title and the tick labels of the panel above


def fewest_empty(count, choices):
    """The number of panels per row, among `choices` (preferred first), that leaves the fewest places
    empty."""
    return (
        count if count <= max(choices) and count in choices else min(choices, key=lambda wide: -count % wide)
    )


def panel_grid(figure, count, across, **shared):
    """`count` axes in rows of at most `across`, row by row; `shared` as in `Figure.subplots`."""
    wide = min(count, across)
    grid = figure.subplots(math.ceil(count / wide), wide, squeeze=False, **shared)
    for axes in grid.flat[count:]:
        axes.remove()
    return list(grid.flat[:count])


def label_lowest(panels, across, xlabel):
    """Sets the x label and ticks under the lowest panel of every column."""
    for axes in panels[-min(len(panels), across) :]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(xlabel)


def label_outer(panels, across, xlabel, ylabel):
    """Sets the x label under the lowest panel of every column, the y label left of every row."""
    label_lowest(panels, across, xlabel)
    for axes in panels[:: min(len(panels), across)]:
        axes.set_ylabel(ylabel)


def finish_grid(
    figure, legend, note, count, across, panel_height, gap=PANEL_GAP, wspace=0.1, below=0.42, top=0.24
):
    """`finish` for a grid of panels; `legend` is (handles, texts), lengths are inches."""
    rows = math.ceil(count / min(count, across))
    height = panel_height * (rows + (rows - 1) * gap)
    finish(figure, *legend, note, height, below=below, hspace=gap, wspace=wspace, top=top)


def draw_empty_note(axes, why="no result to draw"):
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", color="#555555")


def small_panels(paint, places, labels, note, choices, height, wspace=0.1):
    """The `draw` of a Picture with a panel for each of `places`, `paint(axes, place)`, all on equal axes.

    `labels`: of x and of y. `choices[width]`: numbers of panels per row, as for `fewest_empty`. The legend is
    taken from the first panel.
    """

    def draw(width):
        figure, across = new_figure(width), fewest_empty(len(places), choices[width])
        panels = panel_grid(figure, len(places), across, sharex=True, sharey=True)
        for axes, place in zip(panels, places, strict=True):
            paint(axes, place)
        label_outer(panels, across, *labels)
        legend = panels[0].get_legend_handles_labels()
        finish_grid(figure, legend, note, len(places), across, height, wspace=wspace)
        return figure

    return draw
