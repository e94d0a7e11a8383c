"""One picture at two widths: for a page and for a column; and panels with axes of their own at both."""

import math

from .drawn import save
from .panel_grid import panel_grid
from .plotstyle import COLUMN_WIDTH, PAGE_WIDTH, TOP, axes_width, finish, let_go, new_figure

WIDTHS = (("page", PAGE_WIDTH), ("column", COLUMN_WIDTH))
TITLE_ROOM = 0.24  # inches
HEIGHT, BETWEEN_ROWS, BETWEEN_COLUMNS = 1.45, 0.62, 0.50  # inches; between: title, ticks and labels


def at_both_widths(stem, draw, suffix="", widths=WIDTHS):
    """Saves the figures `draw(width)`; returns their PNGs, beside which a PDF stands each: (page, column).

    Files are called STEM_page and STEM_column, then `suffix`. Call inside `styled()`.
    """
    saved = tuple(save(draw(width), f"{stem}_{name}{suffix}") for name, width in widths)
    let_go()
    return saved


def draw_grid(stem, panels, legend, note, on_page=3, in_column=1, height=HEIGHT, titled=True):
    """Draws `panels` (functions of an axes, which title and label it) twice.

    `legend`: (handles, texts). `on_page`, `in_column`: panels side by side. `titled`: they carry titles.
    Returns as `at_both_widths`.
    """
    most = {PAGE_WIDTH: on_page, COLUMN_WIDTH: in_column}
    return at_both_widths(stem, lambda width: _draw(panels, legend, note, width, most[width], height, titled))


def _draw(panels, legend, note, width, most, height, titled):
    wide = min(most, len(panels))
    high = math.ceil(len(panels) / wide)
    figure = new_figure(width)
    for axes, panel in zip(panel_grid(figure, len(panels), wide), panels, strict=True):
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
    return figure
