"""Error against what is paid for it: total bytes as a share of the full cache, and the front of the best."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from ...drawing.budget_axes import drawable, set_error_axis
from ...drawing.curves import make_room
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, finish, new_figure
from ...stats.families import has_values
from ...stats.intervals import unit_means, used_rows

SHARES = (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200)  # ticks, per cent
PEAK, MEAN = "peak_share", "mean_share"
NAMES = {PEAK: "at the peak", MEAN: "averaged over steps"}
SIZES = {COLUMN_WIDTH: (1.75, 1), PAGE_WIDTH: (2.7, 2)}
KEY = ["label", "budget"]
NUMBER_SIZE = 5.8
ROOM_BELOW = 0.55  # factor on the least error, where the last number stands
PANEL_GAP = 0.2  # share of a panel's height


def data(run):
    """A row per label and budget; None with fewer than two: there is no front to look for."""
    points = bytes_points(run)
    return points if len(points) > 1 else None


def draw(run, points):
    """One panel for the peak of the bytes, one for their average over time if the run has it."""
    sizes, title = sizes_of(points), "Error against bytes"
    paint = partial(_figure, points, sizes, run.styles, _note(run, points))
    return [Picture(title, points, paint, _caption(points, sizes), name="error_vs_bytes")]


def sizes_of(points):
    """The columns of sizes that have values: PEAK, MEAN."""
    return [name for name in (PEAK, MEAN) if points[name].notna().any()]


def bytes_points(run):
    """A row per label and budget: mean error with interval, bytes as shares of the full cache, and of each
    size the numbers of its front."""
    points = drawable(run.summary)
    points = points[points["bytes_ratio"].notna()]
    points = points[["label", "budget_tokens", "oracle", "full_cache", "n_units", "n_rows", "n_cells",
                     "rel_err_out_mean", "rel_err_low", "rel_err_high", "total_bytes", "full_bytes",
                     "bytes_ratio"]]  # fmt: skip
    points = points.rename(columns={"bytes_ratio": PEAK})
    points = points.assign(**{MEAN: _mean_share(run.rows, points)}).reset_index(drop=True)
    return points.assign(**{f"front_{size}": front_numbers(points, size) for size in sizes_of(points)})


def _mean_share(rows, points):
    """Time average of the bytes of a cell's caches over the exact cache's at the last token."""
    used = used_rows(rows)
    if not has_values(used, "mean_bytes", "full_bytes"):
        return np.nan
    means = unit_means(_keyed(used), ["mean_bytes", "full_bytes"], KEY).groupby(level=KEY).mean()
    share = means["mean_bytes"] / means["full_bytes"]
    return share.reindex(pd.MultiIndex.from_frame(_keyed(points)[KEY])).to_numpy()


def _keyed(table):
    """A missing budget as -1: missing keys do not look up well."""
    return table.assign(budget=table["budget_tokens"].fillna(-1).astype(int))


def front_numbers(points, size):
    """1, 2, ... by rising bytes for the points that no other beats in bytes and in error; else missing.

    Oracles are left out: no cache can do what they do.
    """
    numbers = np.full(len(points), np.nan)
    real = points[~points["oracle"] & points[size].notna()].sort_values([size, "rel_err_out_mean"])
    best, found = np.inf, 0
    for index, error in real["rel_err_out_mean"].items():
        if error < best:
            best, found = error, found + 1
            numbers[points.index.get_loc(index)] = found
    return numbers


def _figure(points, sizes, styles, note, width):
    height, wide = SIZES[width]
    wide = min(wide, len(sizes))
    high = -(-len(sizes) // wide)
    figure = new_figure(width)
    panels = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
    for axes, size in zip(panels.flat, sizes, strict=True):
        bytes_panel(axes, points, size, styles)
        axes.set_title(f"bytes {NAMES[size]}")
        axes.label_outer()
    for axes in panels[-1]:
        axes.set_xlabel("total bytes [% of the full cache]")
    panels[0][0].set_ylabel("mean rel. error [1]" if height < 2 else "mean relative output error [1]")
    share_axis(panels[0][0], points[sizes].to_numpy())
    tall = height * (high + (high - 1) * PANEL_GAP)
    finish(figure, *bytes_legend(points, styles), note, tall, hspace=PANEL_GAP, wspace=0.06, top=0.26)
    make_room(figure)
    for axes in panels.flat:
        _thin(axes)
    return figure


def bytes_panel(axes, points, size, styles, numbered=True):
    """Curves of all labels over one of the sizes, and the front, its points numbered where a caption says
    what the numbers stand for."""
    for label, curve in points[points[size].notna()].groupby("label", sort=True):
        curve = curve.sort_values(size)
        at, partial = 100 * curve[size].to_numpy(float), curve["n_rows"] < curve["n_cells"]
        styles[label].curve(axes, at, curve["rel_err_out_mean"], partial, 3.4, linewidth=0.6, alpha=0.7)
    _front(axes, points[points[f"front_{size}"].notna()].sort_values(size), size, numbered)
    set_error_axis(axes, points["rel_err_out_mean"])
    if axes.get_yscale() == "log":
        axes.set_ylim(bottom=ROOM_BELOW * points["rel_err_out_mean"].min())


def _front(axes, front, size, numbered):
    """A staircase: with the bytes of a step, no method did better than its height.

    Every point is numbered; `_thin` takes away the numbers that print over each other.
    """
    at, error = 100 * front[size].to_numpy(float), front["rel_err_out_mean"].to_numpy()
    axes.step(at, error, where="post", color="#9A9A9A", linewidth=2.6, alpha=0.45, zorder=1)
    for x, y, number in zip(at, error, front[f"front_{size}"], strict=True) if numbered else ():
        axes.annotate(
            f"{number:.0f}",
            (x, y),
            (-2.5, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=NUMBER_SIZE,
        )


def _thin(axes):
    """Keeps the last number of the front, and of the others those that touch none kept before."""
    drawn = axes.figure.canvas.get_renderer()
    boxes = [(text, text.get_window_extent(drawn)) for text in axes.texts]
    kept = boxes[-1:]
    for text, box in boxes[:-1]:
        if any(box.overlaps(other) for _, other in kept):
            text.remove()
        else:
            kept.append((text, box))


def share_axis(axes, shares):
    """The logarithmic x axis for `shares` of the full cache, in per cent."""
    low, high = 100 * np.nanmin(shares), 100 * np.nanmax(shares)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.25, high * 1.15)
    axes.xaxis.set_major_locator(
        FixedLocator([share for share in SHARES if low / 1.25 <= share <= high * 1.15])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def bytes_legend(points, styles, numbered=True):
    """Handles and texts, the largest error first, the front last."""
    worst_first = points.groupby("label")["rel_err_out_mean"].mean().sort_values(ascending=False).index
    front = Line2D([], [], color="#9A9A9A", linewidth=2.6, alpha=0.45)
    front_text = "front: nothing has less error with fewer bytes" + " (numbered)" * numbered
    texts = [*worst_first, front_text]
    return [*(styles[label].handle() for label in worst_first), front], texts


def _note(run, points):
    parts = [
        run.note,
        "Points of a method: its budgets. Bytes are everything a method stores for one kv head (keys, values,"
        " weights, scores, sketches, indices); the full cache is taken at the last token.",
    ]
    if points["oracle"].any():
        parts.append("Dashed: oracles, which no cache can follow; not in the front.")
    if points[MEAN].isna().all():
        parts.append("This run has no bytes averaged over time.")
    return " ".join(parts)


def _caption(points, sizes):
    """The front in words: share, label, budget, error."""
    texts = []
    for size in sizes:
        front = points[points[f"front_{size}"].notna()].sort_values(size)
        texts.append(
            f"Front, bytes {NAMES[size]}: "
            + "; ".join(_named(row, size) for _, row in front.iterrows())
            + "."
        )
    return " ".join(texts)


def _named(row, size):
    budget = "" if pd.isna(row["budget_tokens"]) else f" B={row['budget_tokens']}"
    share, error = 100 * row[size], row["rel_err_out_mean"]
    return f"{row[f'front_{size}']:.0f} {row['label']}{budget} ({share:.1f} %, {error:.3g})"
