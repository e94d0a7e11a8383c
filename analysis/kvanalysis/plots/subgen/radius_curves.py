"""k-center radius against the number of centres, keys and values, from `kvreplay clusterability`."""

from ...drawing.log_ticks import plain_log
from ...drawing.panel_grid import small_panels
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.clustering import curve, intervals, lower_heads, points_note
from ...stats.verdict import Verdict, of_counts
from .views import VIEWS

AT = (16, 256)
PANEL_HEIGHT = 1.4  # inches
ACROSS = {COLUMN_WIDTH: (2,), PAGE_WIDTH: (5, 4, 3)}


def data(run):
    """Radii of each head, divided by its root mean square distance to the mean."""
    return curve(run.cluster(), "radii", over="rms")


def draw(run, curves):
    shown = intervals(curves, ["layer", "view", "x"])

    def paint(axes, layer):
        _panel(axes, shown[shown["layer"] == layer])
        axes.set_title(f"layer {layer}")

    labels = ("centres k", "radius / rms")
    layers, note = sorted(shown["layer"].unique()), points_note(run.cluster())
    panels = small_panels(paint, layers, labels, note, ACROSS, PANEL_HEIGHT)
    return [Picture("k-center radius of keys and values", shown, panels, _caption(curves))]


def claims(_run, curves):
    return [_verdict(curves, k) for k in _counts(curves)]


def _panel(axes, rows):
    axes.set(xscale="log", yscale="log")
    plain_log(axes.xaxis, (1,))
    plain_log(axes.yaxis)
    for view, style in VIEWS.items():
        mine = rows[rows["view"] == view].sort_values("x")
        if len(mine):
            style.band(axes, mine["x"], mine["low"], mine["high"])
            axes.plot(mine["x"], mine["mean"], color=style.colour, linestyle=style.dashes, label=style.name)


def _counts(curves):
    """The values of k at which numbers are printed: those in AT that are not larger than the sets."""
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
        ". ".join(texts) + ". rms: root mean square distance to the mean. The radius depends on the farthest"
        " token. The mean distance to the nearest centre, which measures the bulk, can order keys and values"
        " the other way round."
    )


def _verdict(curves, k):
    lower, total = lower_heads(curves[curves["x"] == k], "keys", "values")
    outcome = of_counts(lower, total)
    others = lower_heads(curves[curves["x"] == k], "keys_unrotated", "values")
    more = f"; un-rotated keys below values in {others[0]} of {others[1]}" if others[1] else ""
    return Verdict(
        f"Keys are more clusterable than values: smaller radius of {k} centres over rms",
        "SubGen, Fig. 1",
        "every head: holds if all, does not hold if none, else mixed",
        outcome,
        f"keys below values in {lower} of {total} heads{more}",
    )
