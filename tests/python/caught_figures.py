"""Draws figures in memory, without writing pictures to disk, and checks that they are legible."""

from kvanalysis.drawing.style import styled
from kvanalysis.plots import pictures_of
from legible import require_legible


def pictures(plot, frame):
    """Returns the Pictures of an overview plot for a table from `load`, without drawing them."""
    return list(pictures_of(frame, [plot]))


def caught_figures(plot, frame, widths=2):
    """Returns ([page-width and column-width figure of each picture], the Pictures); `widths=1`: page width
    only."""
    found, figures = pictures(plot, frame), []
    with styled():
        for picture in found:
            for _, width in picture.widths[:widths]:
                figures.append(picture.draw(width))
                require_legible(figures[-1], picture.title)
    return figures, found
