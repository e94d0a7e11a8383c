"""Curves of several labels in one or more panels.

The points are a table with the columns panel, label, x, y; optionally low and high, an interval; and
optionally `dot`, true for single values beside a curve.
"""

from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.lines import Line2D

from .curve_axes import Axis, set_axis
from .saving import Picture
from .style import COLUMN_WIDTH, DASHED, PAGE_WIDTH, axes_width, finish, new_figure, styles_for

PANEL_HEIGHT = {COLUMN_WIDTH: 1.55, PAGE_WIDTH: 2.3}  # inches
PANELS_IN_A_ROW = {COLUMN_WIDTH: 1, PAGE_WIDTH: 3}
DOT = 2.2  # points
DASHES = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1.2, 1, 1.2, 1, 1.2)), (0, (8, 2)))
LEVEL_COLOUR = "#555555"


@dataclass(frozen=True)
class Sheet:
    """`labels`: all labels of a set of figures, so that each looks alike in all of them; default: the labels
    of the points. `markers`: whether points are marked; long curves are not. `levels_in`: the panels that
    show the levels of y; default: all."""

    title: str
    points: pd.DataFrame
    x: Axis
    y: Axis
    note: str
    caption: str = ""
    markers: bool = True
    labels: tuple = ()
    levels_in: tuple = ()


def curves_picture(sheet, name=""):
    """The Picture of a Sheet."""
    return Picture(sheet.title, sheet.points, lambda width: _figure(sheet, width), sheet.caption, name)


def _figure(sheet, width):
    panels = list(dict.fromkeys(sheet.points["panel"])) or [""]
    wide = min(len(panels), PANELS_IN_A_ROW[width])
    high = -(-len(panels) // wide)
    figure = new_figure(width)
    grid = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
    styles = _looks(sheet)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, sheet, sheet.points[sheet.points["panel"] == panel], styles, axes_width(width) / wide)
        axes.set_title(panel)
    for axes in grid.flat[: len(panels)]:  # after everything is drawn, because panels share their limits
        set_axis(axes, "y", sheet.y, _heights(sheet.points), axes_width(width) / wide)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    _label(grid, sheet, len(panels))
    height, gap = PANEL_HEIGHT[width], 0.25
    titled = 0.24 if any(panels) else 0.1
    finish(
        figure,
        *_legend(sheet, styles),
        sheet.note,
        height * (high + (high - 1) * gap),
        hspace=gap,
        wspace=0.1,
        top=titled,
    )
    return figure


def _looks(sheet):
    used = dict.fromkeys(sheet.points["label"])
    everything = styles_for(list(sheet.labels or used), set())
    if not sheet.markers:  # dashes then distinguish curves whose colours repeat
        everything = {
            label: replace(style, dashes=DASHES[i % len(DASHES)])
            for i, (label, style) in enumerate(everything.items())
        }
    return {label: everything[label] for label in used}


def _label(grid, sheet, used):
    for index, axes in enumerate(grid.flat[:used]):
        if index + grid.shape[1] >= used:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(sheet.x.label)
    grid[(grid.shape[0] - 1) // 2][0].set_ylabel(sheet.y.label)


def _panel(axes, sheet, points, styles, width):
    set_axis(axes, "x", sheet.x, sheet.points["x"], width)
    for label, rows in points.groupby("label", sort=False):
        curve(axes, rows, styles[label], sheet)
    panel = points["panel"].iloc[0] if len(points) else ""
    for level in sheet.y.levels.values() if not sheet.levels_in or panel in sheet.levels_in else ():
        axes.axhline(level, color=LEVEL_COLOUR, linestyle=DASHED, linewidth=0.9, zorder=1)
    for level in sheet.x.levels.values():
        axes.axvline(level, color=LEVEL_COLOUR, linestyle=DASHED, linewidth=0.9, zorder=1)


def _heights(points):
    return pd.concat([points[name] for name in ("y", "low", "high") if name in points]).dropna()


def curve(axes, rows, style, sheet):
    """Draws one label: its band if it has several points, a bar at a single point."""
    if "dot" in rows:
        dots, rows = rows[rows["dot"]], rows[~rows["dot"]]
        axes.plot(dots["x"], dots["y"], style.marker, color=style.colour, markersize=DOT, alpha=0.55)
    x, y = rows["x"].to_numpy(dtype=float), rows["y"].to_numpy(dtype=float)
    if "low" in rows and rows["low"].notna().any():
        low, high = rows["low"].to_numpy(dtype=float), rows["high"].to_numpy(dtype=float)
        if len(rows) > 1:
            style.band(axes, x, low, high)
        else:
            axes.vlines(x, low, high, color=style.colour, linewidth=0.8)
    marker = style.marker if sheet.markers else None
    axes.plot(x, y, color=style.colour, linestyle=style.dashes, marker=marker)


def _legend(sheet, styles):
    handles = [style.handle(marked=sheet.markers) for style in styles.values()]
    levels = [*sheet.x.levels, *sheet.y.levels]
    handles += [Line2D([], [], color=LEVEL_COLOUR, linestyle=DASHED, linewidth=0.9) for _ in levels]
    return handles, [*styles, *levels]
