"""Small pictures: one or two panels in the style of the figures, saved with few colours."""

import io

from kvanalysis.drawing.style import COLOURS, new_figure
from PIL import Image

BLUE, RED, GREEN, PINK, SKY, ORANGE = COLOURS[:6]
GREY = "#777777"
WIDTH, DPI, PALETTE = 5.2, 150, 64  # inches, dots per inch, colours


def panels(count=1, height=2.0, **how):
    """Makes a figure of `count` panels; returns (figure, axes or list of axes)."""
    figure = new_figure(WIDTH)
    figure.set_size_inches(WIDTH, height)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, count, **how)
    return figure, axes


def note(axes, x, y, text, colour="#222222", **how):
    """Writes text at a place in data coordinates."""
    axes.annotate(text, (x, y), color=colour, fontsize=7, **how)


def level(axes, value, text, colour, dashes="--", across=False):
    """Draws a line at `value` with `text` in the legend: vertical, or horizontal if `across`."""
    draw = axes.axhline if across else axes.axvline
    draw(value, color=colour, linestyle=dashes, linewidth=1.2, label=text)


def save(figure, path):
    """Writes a PNG with a palette of PALETTE colours, which keeps the file small."""
    figure.draw_without_rendering()  # ticks that follow from the aspect need a second layout
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            path, "PNG", optimize=True
        )
