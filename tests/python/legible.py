"""What makes a drawn figure illegible: texts beyond its edge or over each other, a legend over data."""

from itertools import combinations

from matplotlib.text import Text

EDGE = 0.01  # inches of white between a text and the edge of the figure
TOUCHING = 1.0  # pixels that boxes of letters may share: boxes are higher than most letters
PANEL = 0.02  # inches of white between a text and another panel: its ticks stand there


def require_legible(figure, title=""):
    """Fails with the faults of a figure."""
    found = faults(figure)
    assert not found, f"{title}: {'; '.join(found)}"


def faults(figure):
    """[a sentence for each fault of a figure], as it is drawn."""
    figure.draw_without_rendering()
    texts, boxes = _texts(figure), [(axes, axes.get_window_extent()) for axes in figure.axes]
    legends = [legend.get_window_extent() for legend in _legends(figure)]
    found = [f"beyond the edge: {text!r}" for _, text, box in texts if not _inside(box, figure)]
    found += ["a legend beyond the edge" for box in legends if not _inside(box, figure)]
    found += [
        f"over each other: {one!r} and {other!r}"
        for (_, one, first), (_, other, second) in combinations(texts, 2)
        if _overlap(first, second)
    ]
    found += [
        f"over another panel: {text!r}"
        for axes, text, box in texts
        for other, panel in boxes
        if other is not axes and _overlap(box, panel, -PANEL * figure.dpi)
    ]
    found += ["a legend over data" for box in legends for _, panel in boxes if _overlap(box, panel)]
    return found


def _texts(figure):
    """(its Axes or None, the text, its box in pixels) of every text that is drawn."""
    found = [(None, text) for text in figure.texts]
    found += [(None, text) for legend in _legends(figure) for text in legend.get_texts()]
    for axes in figure.axes:
        own = [axes.title, axes._left_title, axes._right_title, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            margin = 1e-9 * (abs(low) + abs(high))
            for tick in axis.get_major_ticks():
                if low - margin <= tick.get_loc() <= high + margin:
                    own += [tick.label1, tick.label2]
            own += [axis.label, axis.get_offset_text()]
        found += [(axes, text) for text in own if axes.axison or text in axes.texts]
    shown = [(axes, text) for axes, text in found if text.get_visible() and text.get_text().strip()]
    return [(axes, text.get_text(), Text.get_window_extent(text)) for axes, text in shown]


def _legends(figure):
    found = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return [legend for legend in found if legend and legend.get_texts()]


def _inside(box, figure):
    whole = figure.bbox.padded(-EDGE * figure.dpi)
    return whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1


def _overlap(one, other, least=TOUCHING):
    """Whether two boxes share more than `least` pixels in both directions."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > least and high > least
