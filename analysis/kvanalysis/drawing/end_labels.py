"""Names at the ends of curves, moved apart so that they do not overlap."""

from textwrap import wrap

import numpy as np

from .room import text_width

SIZE = 6  # points
LINE = 1.25  # line height in units of the font size
ASIDE = 0.06  # inches from the axes to the mark
TEXT_ASIDE = 3.5  # points from the mark to the first letter
BEHIND = 0.08  # inches behind the last letter
LEADER = "#B5B5B5"


def spread(wanted, heights, low, high):
    """Places as near to `wanted` as possible, such that texts of `heights` do not overlap within [low, high].

    Texts that want one place are spread around it. If all together are higher than the room, they extend
    beyond its low end. All four arguments have one unit.
    """
    wanted, heights = np.asarray(wanted, dtype=float), np.asarray(heights, dtype=float)
    order = np.argsort(wanted, kind="stable")
    before = np.concatenate([[0], np.cumsum(heights[order])])[:-1] + heights[order] / 2
    blocks = []  # [sum of what its members want of their common start, how many]
    for start in wanted[order] - before:
        blocks.append([start, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, many = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + many]
    starts = np.concatenate([[total / many] * many for total, many in blocks]) if blocks else np.zeros(0)
    starts = np.minimum(np.maximum(starts, low), high - heights.sum())
    places = np.empty(len(wanted))
    places[order] = starts + before
    return places


def wrapped(name, letters):
    """The lines of a name, at most `letters` each, broken at spaces if possible."""
    return "\n".join(wrap(name, letters)) or name


def names_room(figure, names, letters):
    """Inches that `label_ends` needs beside the axes for these names, with white behind them."""
    widest = text_width(figure, [wrapped(name, letters) for name in names], SIZE)
    return ASIDE + TEXT_ASIDE / 72 + widest + BEHIND


def label_ends(axes, ends, letters):
    """Writes the name of every curve in `ends` {label: (last x, last y, Style)} right of the axes.

    Call once the figure has its final size, and leave room for `letters` beside the axes.
    """
    if not ends:
        return
    box, dpi = axes.get_window_extent(), axes.figure.dpi
    names = [wrapped(label, letters) for label in ends]
    line = SIZE * LINE * dpi / 72
    at = np.array([axes.transData.transform((x, y)) for x, y, _ in ends.values()])
    places = spread(at[:, 1], [line * (1 + name.count("\n")) for name in names], box.y0, box.y1)
    for name, (x, y, style), place in zip(names, ends.values(), (places - box.y0) / box.height, strict=True):
        beside = 1 + ASIDE * dpi / box.width
        look = {"arrowstyle": "-", "color": LEADER, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        fraction = {"textcoords": "axes fraction", "annotation_clip": False}
        axes.annotate("", (x, y), (beside, place), arrowprops=look, zorder=1, **fraction)
        mark = {"color": style.colour, "markersize": 3.2, "clip_on": False}
        axes.plot(beside, place, style.marker, transform=axes.transAxes, **mark)
        aside = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(name, (beside, place), (TEXT_ASIDE, 0), va="center", fontsize=SIZE, **aside)
