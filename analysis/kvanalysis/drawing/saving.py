"""The files of a figure: PNG and PDF for a page and for a column, and the CSV with the numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from PIL import Image, PngImagePlugin

from .. import __version__
from ..stats.verdict import Verdict
from .panel_grid import panel_grid
from .style import COLUMN_WIDTH, DPI, PAGE_WIDTH, TOP, axes_width, collect_figures, finish, new_figure

MADE_BY = f"kvanalysis {__version__}, matplotlib {matplotlib.__version__}"
PAGE, COLUMN = ("page", PAGE_WIDTH), ("column", COLUMN_WIDTH)
COMMON, SPREAD = 64, 32  # colours of a picture: the most common ones, and others evenly from the rest
MANY = 2**15  # up to so many colours of a picture are counted quickly
APART = 8  # colours of a palette differ by at least so many levels of a channel
TITLE_ROOM = 0.24  # inches
HEIGHT, BETWEEN_ROWS, BETWEEN_COLUMNS = 1.45, 0.62, 0.50  # inches; between panels: title, ticks and labels


@dataclass(frozen=True)
class Picture:
    """A figure before it is saved. `draw(width)` draws it for that width; `table` holds the numbers in it.

    `caption`: text below it, with numbers and how to read it. `name`: distinguishes its files from those of
    its neighbours. `more`: further tables {name: DataFrame}. `cells`: (header, rows) for
    `page.html.sortable_table`, if the numbers deserve a table.
    """

    title: str
    table: pd.DataFrame
    draw: Callable
    caption: str = ""
    name: str = ""
    more: dict = field(default_factory=dict)
    cells: tuple | None = None
    widths: tuple = (PAGE, COLUMN)


@dataclass(frozen=True)
class SavedFigure:
    """A saved Picture; `narrow` is the version for a column or a phone, if there is one."""

    title: str
    png: Path
    csv: Path
    narrow: Path | None = None
    caption: str = ""
    cells: tuple | None = None


@dataclass(frozen=True)
class FigureResult:
    """The result of a configuration's figure: its files, the verdicts on the paper's claims, and the
    table that the figures were drawn from."""

    figures: list[SavedFigure]
    verdicts: list[Verdict] = field(default_factory=list)
    table: Any = None


def save(picture, folder, first="", pdf=True):
    """Writes the files of a Picture, whose names begin with `first`, with a PDF if `pdf`; returns the
    SavedFigure. Call inside `styled()`."""

    def path(name):
        return folder / "_".join(filter(None, [first, name]))

    for name, table in picture.more.items():
        write_csv(table, f"{path(name)}.csv")
    stem = path(picture.name)
    csv = write_csv(picture.table, f"{stem}.csv")
    pngs = [save_figure(picture.draw(width), f"{stem}_{name}", pdf) for name, width in picture.widths]
    collect_figures()
    return SavedFigure(picture.title, pngs[0], csv, *pngs[1:], caption=picture.caption, cells=picture.cells)


def save_figure(figure, stem, pdf=True):
    """Writes a PNG, and a PDF if `pdf`. They name their program but no date: equal results give equal files.
    Without `pdf`, an old PDF of another picture is deleted. Returns the PNG's path."""
    png, words = Path(f"{stem}.png"), PngImagePlugin.PngInfo()
    words.add_text("Software", MADE_BY)
    figure.canvas.draw()
    size, pixels = figure.canvas.get_width_height(), figure.canvas.buffer_rgba()
    before = png.read_bytes() if png.is_file() else b""
    few_colours(Image.frombuffer("RGBA", size, pixels).convert("RGB")).save(
        png, dpi=(DPI, DPI), pnginfo=words
    )
    if pdf:
        figure.savefig(png.with_suffix(".pdf"), metadata={"Creator": MADE_BY, "CreationDate": None})
    elif png.read_bytes() != before:
        png.with_suffix(".pdf").unlink(missing_ok=True)
    return png


def few_colours(picture):
    """The picture with a palette, at a quarter of the size, so that pages can embed it.

    Its most common colours are kept: curves, bands and cells keep the colours of their legend.
    """
    counted = picture.getcolors(MANY) or picture.getcolors(picture.width * picture.height)
    spread = picture.quantize(SPREAD, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    colours = [colour for _, colour in sorted(counted, reverse=True)[:COMMON]]
    colours += [colour for _, colour in spread.convert("RGB").getcolors()]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in _apart(colours) for part in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def _apart(colours):
    """The colours that differ enough from all earlier ones: Pillow looks colours up by boxes and would mix
    others."""
    kept = []
    for colour in colours:
        if all(max(abs(a - b) for a, b in zip(colour, other, strict=True)) >= APART for other in kept):
            kept.append(colour)
    return kept


def write_csv(table, path):
    """Writes the numbers behind a figure with nine significant digits; returns the path."""
    table.to_csv(path, index=False, float_format="%.9g")
    return Path(path)


def in_grid(panels, legend, note, on_page=3, in_column=1, height=HEIGHT, titled=True):
    """The `draw` of a Picture of `panels`: functions of an axes, which set its title and labels.

    `legend`: (handles, texts). `on_page`, `in_column`: panels side by side. `titled`: whether panels have
    titles.
    """
    most = {PAGE_WIDTH: on_page, COLUMN_WIDTH: in_column}

    def draw(width):
        wide = min(most[width], len(panels))
        high = math.ceil(len(panels) / wide)
        figure = new_figure(width)
        for axes, panel in zip(panel_grid(figure, len(panels), wide), panels, strict=True):
            panel(axes)
        # matplotlib measures gaps in panel widths: `wide` panels and their gaps fill the room between the
        # margins.
        panel_width = (axes_width(width) - (wide - 1) * BETWEEN_COLUMNS) / wide
        tall = high * height + (high - 1) * BETWEEN_ROWS
        gaps = {"hspace": BETWEEN_ROWS / height, "wspace": BETWEEN_COLUMNS / panel_width}
        finish(figure, *legend, note, tall, **gaps, top=TITLE_ROOM if titled else TOP)
        return figure

    return draw
