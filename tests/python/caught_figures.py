"""Figures as they are drawn, without pictures on disk."""

from kvanalysis.drawing.style import styled
from kvanalysis.plots import pictures_of


def pictures(plot, frame):
    """The Pictures of an overview plot for `load`'s table; nothing is drawn."""
    return list(pictures_of(frame, [plot]))


def caught_figures(plot, frame, widths=2):
    """([the page's figure and the column's, of each picture], the Pictures); `widths=1`: the page's alone."""
    found, figures = pictures(plot, frame), []
    with styled():
        for picture in found:
            for _, width in picture.widths[:widths]:
                figures.append(picture.draw(width))
                figures[-1].draw_without_rendering()
    return figures, found
