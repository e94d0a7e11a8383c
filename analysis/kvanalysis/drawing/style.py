"""Colours, markers, sizes and the page geometry that all figures share. Lengths are inches."""

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from textwrap import wrap

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .fonts import family
from .room import make_room

COLUMN_WIDTH, PAGE_WIDTH = 3.3, 6.9
DPI = 200
# Okabe and Ito's palette without yellow (too faint on white), then Tol's indigo and wine, which differ
# from it in lightness; black and grey are reserved for oracles.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#332288", "#882255")
ORACLE_COLOURS = ("#000000", "#7A7A7A")
# {matplotlib's marker: Bokeh's}
MARKERS = {
    "o": "circle", "s": "square", "^": "triangle", "D": "diamond", "v": "inverted_triangle", "P": "plus",
    "*": "star", "h": "hex", "x": "x", "+": "cross", "1": "y",
}  # fmt: skip
# Common methods look alike on every page: {method: place among the looks}. The first instance of a method
# takes its place; all other labels take the remaining places.
PLACES = {
    name: place
    for place, name in enumerate(
        ("h2o", "snapkv", "streaming_llm", "tova", "uniform", "balancekv", "subgen", "window")
    )
}
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.6))
# When colours repeat, the dashes change.
ROUND_DASHES = ("-", (0, (6, 1.5, 1, 1.5)), (0, (3, 1.2, 1, 1.2, 1, 1.2)))
GLYPH_EMS = (
    0.53  # mean width of a glyph of DejaVu Sans, which matplotlib ships, so that files are equal everywhere
)
LEFT, RIGHT, TOP, GAP = 0.52, 0.10, 0.10, 0.07
# Reading the backend would load a window toolkit.
DEFAULTS = {name: value for name, value in dict.items(matplotlib.rcParamsDefault) if name != "backend"}
RC = {
    "font.size": 7,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 3,
    "axes.titley": 1.0,  # otherwise every drawing searches for a place above all ticks and labels
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "text.hinting": "none",  # hinting serves screens with few pixels, and is the slowest step of a letter
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
NOTE_SIZE = 5.8
LEGEND_HANDLE = 0.6  # width of a legend entry without its text
LONG_LEGEND = 5  # with this many entries, long ones are wrapped so that two columns fit


@dataclass(frozen=True)
class Style:
    """The look of one label, equal in every figure of a run."""

    colour: str
    marker: str
    dashes: object

    @property
    def bokeh_marker(self):
        """Bokeh's name for the marker."""
        return MARKERS[self.marker]

    def curve(self, axes, x, y, hollow, size=4, **line):
        """Draws a line with marks, hollow where `hollow` is true."""
        x, y, hollow = (np.asarray(values) for values in (x, y, hollow))
        axes.plot(x, y, color=self.colour, linestyle=self.dashes, **line)
        for mask, face in ((~hollow, self.colour), (hollow, "white")):
            axes.plot(x[mask], y[mask], self.marker, color=self.colour, markerfacecolor=face, markersize=size)

    def band(self, axes, x, low, high, opacity=0.13):
        axes.fill_between(x, low, high, color=self.colour, alpha=opacity, linewidth=0)

    def handle(self, marked=True, **line):
        """The legend entry."""
        marker = self.marker if marked else None
        return Line2D([], [], color=self.colour, marker=marker, linestyle=self.dashes, **line)


def styles_for(labels, held):
    """{label: Style} for `labels` in order; those in `held` are dashed, black or grey."""
    labels = list(dict.fromkeys(labels))
    places = _places([label for label in labels if label not in held])
    black = {label: place for place, label in enumerate(label for label in labels if label in held)}
    return {label: _held_style(black[label]) if label in held else _style(places[label]) for label in labels}


def _places(labels):
    """{label: place among the looks}, no place twice."""
    taken = {}
    for label in labels:
        taken.setdefault(PLACES.get(label.split(" ")[0]), label)
    taken.pop(None, None)
    places = {label: place for place, label in taken.items()}
    free = (place for place in count() if place not in taken)
    return places | {label: next(free) for label in labels if label not in places}


def _style(place):
    # 8 colours and 11 markers have no common divisor: looks of points without a line repeat after 88 labels.
    dashes = ROUND_DASHES[place // len(COLOURS) % len(ROUND_DASHES)]
    return Style(COLOURS[place % len(COLOURS)], list(MARKERS)[place % len(MARKERS)], dashes)


def _held_style(place):
    colour = ORACLE_COLOURS[place % len(ORACLE_COLOURS)]
    return Style(colour, list(MARKERS)[place % len(MARKERS)], DASHED)


def axes_width(width):
    """Inches between the margins of a figure `width` inches wide."""
    return width - LEFT - RIGHT


def new_figure(width):
    """A figure with the one canvas that needs no display; call inside `styled()`."""
    figure = Figure(figsize=(width, width), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def styled():
    """Inside, figures are drawn with matplotlib's own defaults plus RC, independent of the user's
    matplotlibrc.

    A figure is many objects with circular references. Collecting such garbage during drawing takes a sixth
    of the time, so it is collected after each figure (`collect_figures`), among younger objects.
    """
    gc.freeze()
    gc.disable()
    try:
        with matplotlib.rc_context(DEFAULTS | RC | {"font.family": family()}):
            yield
    finally:
        gc.enable()
        gc.unfreeze()


def collect_figures():
    """Frees the figures that are no longer referenced."""
    gc.collect(0)


def finish(figure, handles, labels, note, axes_height, below=0.42, hspace=0.0, wspace=0.0, top=TOP):
    """Stacks axes, legend and footnote without overlap, and sets the figure's height to fit them.

    `below`: room for tick labels and the x label; spacings are matplotlib's fractions of an axes.
    """
    width = figure.get_size_inches()[0]
    text = figure.text(LEFT / 4 / width, 0, _wrapped(note, width - LEFT / 2, NOTE_SIZE), fontsize=NOTE_SIZE)
    text.set(color="#555555", va="bottom", linespacing=1.25)
    pair = 2 if width > COLUMN_WIDTH and len(labels) > LONG_LEGEND else 1
    names = [_wrapped(label, (width - 0.1) / pair - LEGEND_HANDLE, RC["legend.fontsize"]) for label in labels]
    legend = figure.legend(handles, names, loc="lower center", ncols=_columns(names, width), handlelength=3.2)
    legend.set_in_layout(False)
    note_height, legend_height = _height(text), _height(legend) if labels else 0.0
    bottom = GAP + note_height + legend_height + below
    height = bottom + axes_height + top
    figure.set_size_inches(width, height)
    text.set_y(GAP / height)
    legend.set_bbox_to_anchor((0, (GAP + note_height) / height, 1, 0.1))
    figure.subplots_adjust(LEFT / width, bottom / height, 1 - RIGHT / width, 1 - top / height, wspace, hspace)
    make_room(figure)


def _height(artist):
    return artist.get_window_extent(artist.figure.canvas.get_renderer()).height / artist.figure.dpi


def _wrapped(text, width, size):
    return "\n".join(wrap(text, max(12, int(width * 72 / (size * GLYPH_EMS))), break_long_words=False))


def _columns(names, width):
    longest = max((len(line) for name in names for line in name.split("\n")), default=1)
    return max(1, int((width - 0.1) / (LEGEND_HANDLE + longest * RC["legend.fontsize"] * GLYPH_EMS / 72)))
