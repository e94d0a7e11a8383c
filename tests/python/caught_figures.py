"""Figures as they are drawn, without pictures on disk."""

from pathlib import Path
from unittest.mock import patch

from kvanalysis.drawing.style import styled


def caught_figures(plot, frame, folder):
    """([the page's figure and the column's, of each that is drawn], what `plot.draw_frame` returns)."""
    figures = []

    def keep(figure, stem):
        figure.draw_without_rendering()
        figures.append(figure)
        return Path(f"{stem}.png")

    with styled(), patch("kvanalysis.drawing.saving.save", keep):
        drawn = plot.draw_frame(frame, folder)
    return figures, drawn
