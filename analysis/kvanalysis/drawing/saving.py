"""What a figure leaves on disk: PNG and PDF for a page and for a column, and the CSV behind them."""

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
from .style import COLUMN_WIDTH, DPI, PAGE_WIDTH, TOP, axes_width, finish, let_go, new_figure

MADE_BY = f"kvanalysis {__version__}, matplotlib {matplotlib.__version__}"
PAGE, COLUMN = ("page", PAGE_WIDTH), ("column", COLUMN_WIDTH)
COMMON, SPREAD = 64, 32  # colours of a picture: the commonest, and others evenly from the rest
MANY = 2**15  # colours of a picture that are counted quickly
APART = 8  # levels of a channel by which two colours of a picture differ at least
TITLE_ROOM = 0.24  # inches
HEIGHT, BETWEEN_ROWS, BETWEEN_COLUMNS = 1.45, 0.62, 0.50  # inches; between: title, ticks and labels


@dataclass(frozen=True)
class Picture:
    """A figure before it is on disk. `draw(width)` makes it for that width, `table` is what it shows.

    `caption` is what a reader must know beside it: numbers, and how to read it. `name` tells its files from
    those of its neighbours, `more` are further tables {name: DataFrame}. `cells` is a (header, rows) for
    `page.html.sortable_table`, where the numbers deserve one.
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
    """A Picture on disk; `narrow` is the one for a column or a phone, if there is one."""

    title: str
    png: Path
    csv: Path
    narrow: Path | None = None
    caption: str = ""
    cells: tuple | None = None


@dataclass(frozen=True)
class FigureResult:
    """All that a configuration's figure came to: its files, what they say about the paper's claims, and the
    table that the figures were drawn from."""

    figures: list[SavedFigure]
    verdicts: list[Verdict] = field(default_factory=list)
    table: Any = None


def save(picture, folder, first="", pdf=True):
    """Writes the files of a Picture, whose names begin with `first`, PDF where they are wanted; returns the
    SavedFigure. Call inside `styled()`."""

    def path(name):
        return folder / "_".join(filter(None, [first, name]))

    for name, table in picture.more.items():
        write_csv(table, f"{path(name)}.csv")
    stem = path(picture.name)
    csv = write_csv(picture.table, f"{stem}.csv")
    pngs = [save_figure(picture.draw(width), f"{stem}_{name}", pdf) for name, width in picture.widths]
    let_go()
    return SavedFigure(picture.title, pngs[0], csv, *pngs[1:], caption=picture.caption, cells=picture.cells)


def save_figure(figure, stem, pdf=True):
    """A PNG, and a PDF where it is wanted, that name their program and no date: equal results, equal files.
    Without, a PDF of another picture does not stay beside the new one. Returns the PNG's path."""
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
    """The picture with a palette: a quarter of the size, so that pages can embed it.

    Its commonest colours stay as they are: curves, bands and cells keep the colours of their legend.
    """
    counted = picture.getcolors(MANY) or picture.getcolors(picture.width * picture.height)
    spread = picture.quantize(SPREAD, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    colours = [colour for _, colour in sorted(counted, reverse=True)[:COMMON]]
    colours += [colour for _, colour in spread.convert("RGB").getcolors()]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in _apart(colours) for part in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def _apart(colours):
    """Those that differ from all earlier ones: Pillow looks colours up by boxes and would mix the others."""
    kept = []
    for colour in colours:
        if all(max(abs(a - b) for a, b in zip(colour, other, strict=True)) >= APART for other in kept):
            kept.append(colour)
    return kept


def write_csv(table, path):
    """The numbers behind a figure, nine significant digits; returns the path."""
    table.to_csv(path, index=False, float_format="%.9g")
    return Path(path)


def in_grid(panels, legend, note, on_page=3, in_column=1, height=HEIGHT, titled=True):
    """The `draw` of a Picture of `panels`: functions of an axes, which title and label it.

    `legend`: (handles, texts). `on_page`, `in_column`: panels side by side. `titled`: they carry titles.
    """
    most = {PAGE_WIDTH: on_page, COLUMN_WIDTH: in_column}

    def draw(width):
        wide = min(most[width], len(panels))
        high = math.ceil(len(panels) / wide)
        figure = new_figure(width)
        for axes, panel in zip(panel_grid(figure, len(panels), wide), panels, strict=True):
            panel(axes)
        # matplotlib counts gaps in widths of a panel: wide panels and gaps fill what the margins leave.
        panel_width = (axes_width(width) - (wide - 1) * BETWEEN_COLUMNS) / wide
        tall = high * height + (high - 1) * BETWEEN_ROWS
        gaps = {"hspace": BETWEEN_ROWS / height, "wspace": BETWEEN_COLUMNS / panel_width}
        finish(figure, *legend, note, tall, **gaps, top=TITLE_ROOM if titled else TOP)
        return figure

    return draw
