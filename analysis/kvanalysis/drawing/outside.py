"""A legend outside of an Axes that a user made: it takes its space from the Axes and covers no data."""

from textwrap import wrap

from matplotlib import rcParams
from matplotlib.transforms import Bbox, ScaledTranslation

NARROW = 4.5  # inches: narrower figures have smaller letters in the legend
SMALL, NARROW_SIZE = 0.833, 6.0  # letters of the legend: share of the font size; most points where narrow
ASIDE = 0.08  # inches between the Axes with its labels and the legend
EDGE = 0.03  # inches of white at the edge of the figure
BESIDE = 0.3  # a legend stands beside the Axes if it takes at most this share of the width
LINES = (60, 40, 30, 24, 18, 14)  # letters of a line that are tried
HIGHER = 1.2  # a legend may be so much higher than the lowest one if its lines are longer
LEAST = 0.35  # share of its height that the Axes keeps in any case
MOST_LINES = 3  # an axis label that needs more gets smaller letters
LEAST_SIZE, ONE_LINE_SIZE = 5.0, 6.0  # points: of any label; of a label of x that is kept on one line
TOGETHER = {" (one shot)": " (one\xa0shot)"}  # no line ends inside
FEW = 0.6  # an Axes that keeps a smaller share of its height also takes the white above it
ROUNDS = 3  # labels, legend and Axes depend on each other


def legend_outside(axes, handles, texts, beside=True):
    """Adds a legend beside the Axes if it is narrow (and `beside` allows it), else below it, in the columns
    that make it lowest.

    The Axes shrinks within its space. A figure with a layout engine (`layout="constrained"`) arranges
    itself.
    """
    space, before = _space(axes), _extent(axes)
    for _ in range(ROUNDS):
        fit_labels(axes)
        if texts:
            _place(axes, handles, texts, space, beside)
        if axes.figure.figure.get_layout_engine() is None:
            _shrink(axes, space, before)
    if axes.figure.figure.get_layout_engine() is None:
        fit_labels(axes)
        _shrink(axes, space, before)


def fit_labels(axes):
    """Makes the labels of x and y no longer than the Axes, by smaller letters and by a second line."""
    box = _extent(axes)
    for label, room, smallest in (
        (axes.xaxis.label, box.width, ONE_LINE_SIZE),
        (axes.yaxis.label, box.height, float("inf")),
    ):
        text = " ".join(label.get_text().split())
        label.set_text(text)
        length = _length(label)
        if length <= room:
            continue
        if label.get_size() * room / length < smallest:
            letters = max(len(text) // MOST_LINES + 4, int(len(text) * room / length))
            label.set_text(_lines(text, letters))
            length = _length(label)
        label.set_size(max(LEAST_SIZE, label.get_size() * min(1.0, room / length)))


def _length(label):
    extent = label.get_window_extent()
    return max(extent.width, extent.height)


def _space(axes):
    """The pixels that an Axes may take with its labels and legend: up to the panels left of it and below it,
    whose gaps are its own; on the other sides to the edge of the figure, or as now if there is a panel."""
    figure = axes.figure.figure
    box, own = _extent(axes), axes.get_tightbbox()
    whole, gap = figure.bbox.padded(-EDGE * figure.dpi), ASIDE * figure.dpi
    others = [other.get_window_extent() for other in figure.axes if other is not axes]
    beside = [other for other in others if other.y0 < box.y1 and box.y0 < other.y1]
    stacked = [other for other in others if other.x0 < box.x1 and box.x0 < other.x1]
    left = max((other.x1 + gap for other in beside if other.x1 <= box.x0), default=whole.x0)
    low = max((other.y1 + gap for other in stacked if other.y1 <= box.y0), default=whole.y0)
    right = own.x1 if any(other.x0 >= box.x1 for other in beside) else whole.x1
    high = own.y1 if any(other.y0 >= box.y1 for other in stacked) else whole.y1
    return Bbox([[left, low], [right, high]])


def _extent(axes):
    axes.figure.figure.draw_without_rendering()  # applies a layout that is pending before the first drawing
    return axes.get_window_extent()


def _place(axes, handles, texts, space, beside):
    if axes.get_legend():
        axes.get_legend().remove()
    box = _extent(axes)
    own = axes.get_tightbbox()
    extent = _legend(axes, handles, texts, 1, ASIDE).get_window_extent()
    if beside and extent.width <= BESIDE * space.width and extent.height <= box.height:
        return
    room = space.width - 2 * ASIDE * axes.figure.dpi  # `tight_layout` later moves the Axes a little
    found = [_columns(axes, handles, texts, letters, room) for letters in LINES]
    fitting = [each for each in found if each[0] <= room] or found[-1:]
    lowest = min(height for _, height, _, _ in fitting)
    _, _, lines, columns = next(each for each in fitting if each[1] <= HIGHER * lowest)
    # A layout engine knows the Axes' end, and moves it to the end of the space.
    right = box.x1 if axes.figure.figure.get_layout_engine() else space.x1
    dpi = axes.figure.dpi
    _legend(axes, handles, lines, columns, (right - box.x1) / dpi, (box.y0 - own.y0) / dpi + ASIDE)


def _columns(axes, handles, texts, letters, room):
    """(width, height, texts in lines, columns) of the legend whose lines have so many letters."""
    lines = [_lines(text, letters) for text in texts]
    one = _legend(axes, handles, lines, 1, 0.0, 0.0).get_window_extent()
    columns = max(1, min(len(lines), int(room / one.width) + 1))
    extent = _legend(axes, handles, lines, columns, 0.0, 0.0).get_window_extent()
    while extent.width > room and columns > 1:
        columns -= 1
        extent = _legend(axes, handles, lines, columns, 0.0, 0.0).get_window_extent()
    return extent.width, extent.height, lines, columns


def _lines(text, letters):
    for words, bound in TOGETHER.items():
        text = text.replace(words, bound)
    return "\n".join(wrap(text, letters, break_long_words=False)).replace("\xa0", " ")


def _legend(axes, handles, texts, columns, aside, below=None):
    """The legend `aside` inches right of the Axes, or `below` inches below it, its right end `aside` inches
    behind that of the Axes."""
    figure = axes.figure
    shift = ScaledTranslation(aside, -(below or 0.0), figure.dpi_scale_trans)
    corner = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    if below is not None:
        corner = {"loc": "upper right", "bbox_to_anchor": (1, 0)}
    narrow = figure.figure.get_size_inches()[0] < NARROW
    size = SMALL * rcParams["font.size"]
    look = {"fontsize": min(size, NARROW_SIZE), "labelspacing": 0.25} if narrow else {"fontsize": size}
    look |= {"borderaxespad": 0.0, "borderpad": 0.0, "columnspacing": 1.2, "handletextpad": 0.5}
    place = {"ncols": columns, "bbox_transform": axes.transAxes + shift, **corner}
    return axes.legend(handles, texts, frameon=False, **place, **look)


def _shrink(axes, space, before):
    """Moves the edges of an Axes inwards until it lies within `space` with its labels and its legend.
    `before`: its box without them."""
    box, own = _extent(axes), axes.get_tightbbox()
    left, right = max(box.x0, space.x0 + box.x0 - own.x0), min(box.x1, space.x1 - (own.x1 - box.x1))
    low, high = max(box.y0, space.y0 + box.y0 - own.y0), min(box.y1, space.y1 - (own.y1 - box.y1))
    if high - low < FEW * before.height:
        high = max(high, space.y1 - (own.y1 - box.y1))
    low, left = min(low, high - LEAST * before.height), min(left, right - LEAST * before.width)
    _move(axes, Bbox([[left, low], [right, high]]).transformed(axes.figure.transSubfigure.inverted()))


def _move(axes, box):
    """Sets the box of an Axes, in shares of the figure. A lone Axes keeps its place in the figure's grid,
    which `tight_layout` needs."""
    figure = axes.figure
    if len(figure.axes) == 1 and figure is figure.figure and axes.get_subplotspec():
        figure.subplots_adjust(left=box.x0, right=box.x1, bottom=box.y0, top=box.y1)
        return
    axes.set_position(box)
    axes.set_in_layout(True)  # set_position takes it out, and savefig(bbox_inches="tight") would miss it
