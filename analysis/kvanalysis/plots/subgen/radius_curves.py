"""k-center radius against the number of centres, keys and values, from `kvreplay cluster`."""

from ...drawing.log_ticks import plain_log
from ...drawing.panel_grid import fewest_empty, finish_grid, label_outer, panel_grid
from ...drawing.saving import Drawn, Plot, at_both_widths, write_csv
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, new_figure
from ...stats.clustering import curve, intervals, lower_heads, points_note
from ...stats.verdict import FAILS, HOLDS, MIXED, Verdict
from .views import VIEWS

AT = (16, 256)
PANEL_HEIGHT = 1.4  # inches
ACROSS = {COLUMN_WIDTH: (2,), PAGE_WIDTH: (5, 4, 3)}


def draw(context):
    table = context.cluster()
    curves = curve(table, "radii", over="rms")
    shown = intervals(curves, ["layer", "view", "x"])
    csv = write_csv(shown, context.stem(".csv"))
    layers = sorted(shown["layer"].unique())

    def at(width):
        figure, across = new_figure(width), fewest_empty(len(layers), ACROSS[width])
        panels = panel_grid(figure, len(layers), across, sharex=True, sharey=True)
        for axes, layer in zip(panels, layers, strict=True):
            _panel(axes, shown[shown["layer"] == layer])
            axes.set_title(f"layer {layer}", loc="left", pad=3)
        label_outer(panels, across, "centres k", "radius / rms [1]")
        legend = panels[0].get_legend_handles_labels()
        finish_grid(figure, legend, points_note(table), len(layers), across, PANEL_HEIGHT)
        return figure

    page, column = at_both_widths(context.stem(), at)
    drawn = Drawn("k-center radius of keys and values", page, csv, column, _caption(curves))
    return Plot([drawn], [_verdict(curves, k) for k in _counts(curves)])


def _panel(axes, rows):
    axes.set(xscale="log", yscale="log")
    plain_log(axes.xaxis, (1,))
    plain_log(axes.yaxis)
    for view, look in VIEWS.items():
        mine = rows[rows["view"] == view].sort_values("x")
        if len(mine):
            axes.fill_between(
                mine["x"], mine["low"], mine["high"], color=look.colour, alpha=0.15, linewidth=0
            )
            axes.plot(mine["x"], mine["mean"], color=look.colour, linestyle=look.dashes, label=look.name)


def _counts(curves):
    """The k at which numbers are printed: those of AT that the sets are large enough for."""
    return [k for k in AT if (curves["x"] == k).any()]


def _caption(curves):
    texts = []
    for k in _counts(curves):
        at = curves[curves["x"] == k].groupby(["layer", "view"])["value"].mean().unstack()
        views = [
            f"{VIEWS[view].name} {' '.join(f'{v:.2f}' for v in at[view])}" for view in VIEWS if view in at
        ]
        texts.append(
            f"r_{k}/rms by layer ({', '.join(map(str, at.index))}), mean over heads: {'; '.join(views)}"
        )
    return (
        ". ".join(texts) + ". rms: root mean square distance to the mean. The radius is set by the farthest"
        " token; the mean distance to the nearest centre, which measures the bulk, can order the two the"
        " other way."
    )


def _verdict(curves, k):
    lower, total = lower_heads(curves[curves["x"] == k], "keys", "values")
    outcome = HOLDS if lower == total else FAILS if lower == 0 else MIXED
    others = lower_heads(curves[curves["x"] == k], "keys_unrotated", "values")
    more = f"; un-rotated keys below values in {others[0]} of {others[1]}" if others[1] else ""
    return Verdict(
        f"Keys are more clusterable than values: smaller radius of {k} centres over rms",
        "SubGen, Fig. 1",
        "every head: holds if all, does not hold if none, else mixed",
        outcome,
        f"keys below values in {lower} of {total} heads{more}",
    )
