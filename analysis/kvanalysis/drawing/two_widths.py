"""Panels with axes of their own, on a page and in a column, over one legend and one footnote."""

import math

from .drawn import save
from .plotstyle import COLUMN_WIDTH, PAGE_WIDTH, TOP, axes_width, finish, new_figure

TITLE_ROOM = 0.24  # inches
HEIGHT, BETWEEN_ROWS, BETWEEN_COLUMNS = 1.45, 0.62, 0.50  # inches; between: title, ticks and labels


def draw_grid(stem, panels, legend, note, on_page=3, in_column=1, height=HEIGHT, titled=True):
    """Draws `panels` (functions of an axes, which title and label it) twice.

    `legend`: (handles, texts). `on_page`, `in_column`: panels side by side. `titled`: they carry titles.
    Returns (page, column), the PNGs beside which a PDF stands each. Call inside `styled()`.
    """
    widths = (("page", PAGE_WIDTH, on_page), ("column", COLUMN_WIDTH, in_column))
    return tuple(
        _draw(f"{stem}_{name}", panels, legend, note, *size, height, titled) for name, *size in widths
    )


def _draw(stem, panels, legend, note, width, most, height, titled):
    wide = min(most, len(panels))
    high = math.ceil(len(panels) / wide)
    figure = new_figure(width)
    grid = figure.subplots(high, wide, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        panel(axes)
    # matplotlib counts gaps in widths of a panel: wide panels and gaps fill what the margins leave.
    panel_width = (axes_width(width) - (wide - 1) * BETWEEN_COLUMNS) / wide
    finish(
        figure,
        *legend,
        note,
        high * height + (high - 1) * BETWEEN_ROWS,
        hspace=BETWEEN_ROWS / height,
        wspace=BETWEEN_COLUMNS / panel_width,
        top=TITLE_ROOM if titled else TOP,
    )
    return save(figure, stem)
