"""Short texts beside points of a scatter plot, placed so that they cover no text and no point and stay
inside."""

from itertools import product

from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox

SIZE, COLOUR = 5.5, "#333333"
DISTANCES = (4, 9, 15, 22)  # points (1/72 inch) from the mark to its text
# The first directions put the text right or left of its mark.
DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
LEADER = {"arrowstyle": "-", "color": "#888888", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 1.5}
HALO = withStroke(linewidth=1.4, foreground="white")  # keeps a text readable over a curve
MARK = 2.5  # half of a mark's width, points


def label_points(axes, wanted, points):
    """Writes `wanted` [(x, y, text)], the most important first, without covering `points` [(x, y)].

    Call once the layout is final, because places depend on it. A text takes the nearest place that touches
    nothing; a text without such a place is left out. Returns the texts that were written.
    """
    drawn = axes.figure.canvas.get_renderer()
    unit = axes.figure.dpi / 72
    marks = [_around(axes.transData.transform(point), MARK * unit) for point in points]
    taken, leaders, written = [], [], []
    for x, y, text in wanted:
        for distance, (right, up) in product(DISTANCES, DIRECTIONS):
            note = _note(axes, x, y, text, right * distance, up * distance)
            note.update_positions(drawn)
            # The extent of an annotation includes the line to its mark.
            box = Text.get_window_extent(note, drawn).padded(0.6 * unit)
            leader = _leader(axes.transData.transform((x, y)), box)
            touched = any(box.overlaps(other) for other in (*taken, *marks))
            crossed = any(_crosses(leader, other) for other in taken) or any(
                _crosses(line, box) for line in leaders
            )
            if _inside(box, axes.bbox) and not touched and not crossed:
                taken.append(box)
                leaders.append(leader)
                written.append(text)
                break
            note.remove()
    return written


def _note(axes, x, y, text, right, up):
    ha = "left" if right > 0 else "right" if right < 0 else "center"
    va = "bottom" if up > 0 else "top" if up < 0 else "center"
    return axes.annotate(text, (x, y), (right, up), textcoords="offset points", ha=ha, va=va, fontsize=SIZE,
                         color=COLOUR, arrowprops=LEADER, path_effects=[HALO], zorder=5)  # fmt: skip


def _leader(place, box):
    """The line from a mark to the nearest edge of its text."""
    x, y = place
    return Path([(x, y), (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))])


def _crosses(line, box):
    return line.intersects_bbox(box, filled=False)


def _around(place, half):
    x, y = place
    return Bbox([[x - half, y - half], [x + half, y + half]])


def _inside(box, whole):
    return whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
