"""What a figure leaves on disk: PNG, PDF and the CSV behind them."""

from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
from PIL import Image, PngImagePlugin

from .. import __version__
from ..numbers.verdict import Verdict
from .plotstyle import DPI

MADE_BY = f"kvanalysis {__version__}, matplotlib {matplotlib.__version__}"


@dataclass(frozen=True)
class Drawn:
    """One figure on disk; `narrow` is the same picture for a column or a phone, if there is one.

    `caption` is what a reader must know beside the picture: numbers, and how to read it. `table` is a
    (header, rows) for `page.sortable_table`, where the numbers deserve one.
    """

    title: str
    png: Path
    csv: Path
    narrow: Path | None = None
    caption: str = ""
    table: tuple | None = None


@dataclass(frozen=True)
class Plot:
    """What a renderer returns."""

    figures: list[Drawn]
    verdicts: list[Verdict] = field(default_factory=list)


def save(figure, stem):
    """PNG and PDF that name their program and no date: equal results, equal files. Returns the PNG's path."""
    figure.savefig(f"{stem}.pdf", metadata={"Creator": MADE_BY, "CreationDate": None})
    figure.savefig(f"{stem}.png", dpi=DPI)
    _few_colours(f"{stem}.png")
    return Path(f"{stem}.png")


def _few_colours(png):
    """A palette of 256 colours makes a picture of lines and text three times smaller: pages embed them."""
    with Image.open(png) as picture:
        small = picture.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    words = PngImagePlugin.PngInfo()
    words.add_text("Software", MADE_BY)
    small.save(png, optimize=True, dpi=(DPI, DPI), pnginfo=words)


def write_csv(table, path):
    """The numbers behind a figure, nine significant digits; returns the path."""
    table.to_csv(path, index=False, float_format="%.9g")
    return Path(path)
