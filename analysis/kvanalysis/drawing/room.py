"""Margins of a figure, and gaps between its panels, that fit the tick labels and axis labels as drawn."""

EDGE = 0.03  # inches of white at the left and at the right
GAP = 0.05  # inches of white between the labels of a panel and the panel left of it


def text_width(figure, lines, size):
    """Inches that the widest of `lines` takes at a font size in points."""
    text = figure.text(0, 0, "\n".join(lines), fontsize=size)
    widest = text.get_window_extent().width / figure.dpi
    text.remove()
    return widest


def make_room(figure):
    """Moves the edges of the axes until wide tick labels and axis labels fit on the figure, and widens the
    gaps between panels until no label reaches the panel left of it.

    Call once the axes have their labels and the figure its size.
    """
    panels = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    if not panels:
        return
    drawn, pixels = figure.canvas.get_renderer(), figure.bbox.width
    white = EDGE * figure.dpi
    first = [_labels(axes, drawn) for axes in panels if _is_first(axes)]
    left = max((white - box.x0 for box in first if box), default=0)
    right = max(
        (
            box.x1 + white - pixels
            for axes in panels
            if axes.get_subplotspec().is_last_col()
            and (box := axes.xaxis.get_tightbbox(drawn, for_layout_only=True))
        ),
        default=0,
    )
    if left > 0:
        figure.subplots_adjust(left=figure.subplotpars.left + left / pixels)
    if right > 0:
        figure.subplots_adjust(right=figure.subplotpars.right - right / pixels)
    _widen_gaps(figure, panels, drawn)


def _widen_gaps(figure, panels, drawn):
    grids = {axes.get_subplotspec().get_gridspec() for axes in panels}
    columns = max(grid.ncols for grid in grids)
    if len(grids) > 1 or columns == 1:
        return
    missing = max((_missing(axes, panels, drawn) for axes in panels if not _is_first(axes)), default=0)
    if missing <= 0:
        return
    shape = figure.subplotpars
    total = shape.right - shape.left
    gap = shape.wspace * total / (columns + shape.wspace * (columns - 1)) + missing / figure.bbox.width
    panel = (total - gap * (columns - 1)) / columns
    if panel > 0:
        figure.subplots_adjust(wspace=gap / panel)


def _missing(axes, panels, drawn):
    """Pixels by which the labels of an Axes are too near to the panel left of it."""
    box, place = _labels(axes, drawn), axes.get_subplotspec()
    before = [
        other.bbox.x1
        for other in panels
        if other.get_subplotspec().colspan.stop == place.colspan.start
        and other.get_subplotspec().rowspan == place.rowspan
    ]
    return max(before) + GAP * axes.figure.dpi - box.x0 if box and before else 0


def _is_first(axes):
    return axes.get_subplotspec().is_first_col()


def _labels(axes, drawn):
    """The box of the tick labels and the label of y; None without any."""
    return axes.yaxis.get_tightbbox(drawn) if axes.axison else None
