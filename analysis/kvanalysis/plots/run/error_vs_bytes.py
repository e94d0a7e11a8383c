"""Error against total bytes as a share of the full cache, split by phase, with the Pareto front. If a run has
more methods than a reader can distinguish as curves, they are drawn as sorted dots in classes of bytes."""

from functools import partial
from itertools import pairwise
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from ...answer.measures import DEFAULT, MAIN, words_of
from ...answer.sizes import PEAK as PEAK_BYTES
from ...answer.sizes import PROMPT, SIZES, default_size
from ...drawing.budget_axes import MOST_CURVES, above_notes, drawable, frame_errors, top_of
from ...drawing.end_labels import label_ends, names_room
from ...drawing.panel_grid import panel_grid
from ...drawing.room import make_room, text_width
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, LEFT, PAGE_WIDTH, RC, finish, new_figure
from ...stats.families import FAMILIES, PHASES, family_of, has_values
from ...stats.intervals import unit_means, used_rows
from ...stats.summary import INTERVALS
from .bytes_classes import asked_shares, asked_text, classes_picture, read_asked

SHARES = (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200)  # ticks, per cent
APART = 1.4  # ratio of two ticks whose numbers do not touch
PROMPT_SHARE, PEAK, MEAN = "prompt_share", "peak_share", "mean_share"
NAMES = {PROMPT_SHARE: "after the cut", PEAK: "at the peak", MEAN: "averaged over steps"}
WHOLE = {PROMPT_SHARE: "the prompt’s full cache", PEAK: "the full cache", MEAN: "the full cache"}
COUNTED = {
    PROMPT_SHARE: "after the prompt is cut, as a share of the prompt’s full cache. One-shot methods also"
    " keep every later token",
    PEAK: "at the peak; the full cache is taken at the last token",
}
HEIGHT = {COLUMN_WIDTH: 1.9, PAGE_WIDTH: 2.5}  # inches
ACROSS = {COLUMN_WIDTH: 1, PAGE_WIDTH: 3}
LETTERS = 18  # letters of a name in a line
LONGEST_WORD = 10  # letters
TITLES, BELOW = 0.28, 0.26  # inches
FRONT = {"color": "#9A9A9A", "linewidth": 2.6, "alpha": 0.45}
KEY = ["label", "budget"]
TITLE = "Error against bytes"


def data(run):
    """A row per label and budget; None if none has bytes and an error."""
    points = bytes_points(run)
    return points if len(points) else None


def draw(run, points):
    """A panel for each phase; for many methods, a panel for each class of bytes."""
    left_out = _left_out(run, points)
    caption = f"{_caption(points)}{left_out}"
    if points["label"].nunique() > MOST_CURVES:
        return [classes_picture(TITLE, points, run.styles, caption, "error_vs_bytes", loss_words(points))]
    paint = partial(phases_figure, points, run.styles, f"{_note(points)}{left_out}")
    return [Picture(TITLE, points, paint, caption, name="error_vs_bytes")]


def sizes_of(points):
    """The columns of sizes that have values: PROMPT_SHARE, PEAK, MEAN."""
    return [name for name in NAMES if name in points and points[name].notna().any()]


def main_size(points):
    """The size that pictures show: the prompt's, if the table is compared by it, else the peak."""
    return PROMPT_SHARE if PROMPT_SHARE in sizes_of(points) else PEAK


def bytes_points(run):
    """A row per label and budget: family, `loss` with its interval, the measure (`measure`) that ranks
    methods without a gradient, the mean error with its interval, bytes as shares of the full cache, and for
    each size the numbers of its front."""
    points = drawable(run.summary)
    points = points[points["bytes_ratio"].notna()]
    points = points[["label", "budget_tokens", "oracle", "full_cache", "n_units", "n_rows", "n_cells",
                     "rel_err_out_mean", "rel_err_low", "rel_err_high", "cosine_distance_sq", "distance_low",
                     "distance_high", "total_bytes", "full_bytes", "bytes_ratio"]]  # fmt: skip
    points = _with_loss(points)
    points = points.rename(columns={"bytes_ratio": PEAK})
    points.insert(1, "family", points["label"].map(family_of(run.rows)))
    points = points.assign(**{MEAN: _mean_share(run.rows, points)}).reset_index(drop=True)
    if default_size(run.rows) == PROMPT:
        points[PROMPT_SHARE] = _share_of(SIZES[PROMPT].held, SIZES[PROMPT].full, run.rows, points)
    asked = asked_shares(run.rows, PROMPT if main_size(points) == PROMPT_SHARE else PEAK_BYTES)
    keys = _keyed(points)[KEY].itertuples(index=False, name=None)
    points["asked"] = [asked_text(asked.get(key, ())) for key in keys]
    return points.assign(**{f"front_{size}": front_numbers(points, size) for size in sizes_of(points)})


def _with_loss(points):
    """`measure` and `loss`, `loss_low`, `loss_high` of rows of a summary: from DEFAULT, or from the mean
    error if an older table lacks it."""
    measure = DEFAULT if len(points) and points[DEFAULT].notna().all() else MAIN
    name = INTERVALS[measure]
    loss = {"loss": points[measure], "loss_low": points[f"{name}_low"], "loss_high": points[f"{name}_high"]}
    points = points.assign(measure=measure, **loss)
    if measure != DEFAULT:
        points = points.drop(columns=["cosine_distance_sq", "distance_low", "distance_high"])
    return points


def loss_words(points):
    """The axis label of the measure."""
    return words_of(points, points["measure"].iloc[0]) if len(points) else "error"


def _mean_share(rows, points):
    """Time average of the bytes of a cell's caches over the bytes of the exact cache at the last token."""
    return _share_of("mean_bytes", "full_bytes", rows, points)


def _share_of(held, full, rows, points):
    """Mean of the column `held` over the mean of `full`, for each of the points."""
    used = used_rows(rows)
    if not has_values(used, held, full):
        return np.nan
    means = unit_means(_keyed(used), [held, full], KEY).groupby(level=KEY).mean()
    share = means[held] / means[full]
    return share.reindex(pd.MultiIndex.from_frame(_keyed(points)[KEY])).to_numpy()


def _keyed(table):
    """A missing budget as -1, because missing keys cannot be looked up."""
    return table.assign(budget=table["budget_tokens"].fillna(-1).astype(int))


def front_numbers(points, size):
    """1, 2, ... by rising bytes for the points on the Pareto front of bytes and error; else missing.

    Oracles are left out: no cache can match them.
    """
    numbers = np.full(len(points), np.nan)
    real = points[~points["oracle"] & points[size].notna()].sort_values([size, "loss"])
    best, found = np.inf, 0
    for index, error in real["loss"].items():
        if error < best:
            best, found = error, found + 1
            numbers[points.index.get_loc(index)] = found
    return numbers


def phases_figure(points, styles, note, width):
    """A panel for each family of `points`, all with equal axes, names at the ends of the curves."""
    size = main_size(points)
    families = [family for family in FAMILIES if family in set(points["family"])]
    wide = min(len(families), ACROSS[width])
    high = -(-len(families) // wide)
    figure = new_figure(width)
    panels = panel_grid(figure, len(families), wide, sharex=True, sharey=True)
    for axes, family in zip(panels, families, strict=True):
        bytes_panel(axes, points, size, styles, points["family"] == family)
        axes.set_title(PHASES[family])
        axes.tick_params(labelbottom=True)
    for axes in panels[-wide:]:
        axes.set_xlabel(f"bytes [% of {WHOLE[size]}]")
    frame_errors(panels[0], points["loss"])  # once all panels are drawn, as they share their axes
    share_axis(panels[0], points[size].to_numpy(float), asked_of(points))
    room = names_room(figure, points["label"].unique(), LETTERS)
    panel = (width - LEFT - wide * room) / wide
    gap = (TITLES + BELOW) / HEIGHT[width]
    front = [FRONT_TEXT] if has_front(points, size) else []
    finish(
        figure, [Line2D([], [], **FRONT) for _ in front], front, note,
        HEIGHT[width] * (high + (high - 1) * gap), hspace=gap, wspace=room / panel, top=TITLES,
    )  # fmt: skip
    figure.subplots_adjust(right=1 - room / width)
    middle = panels[(high - 1) // 2 * wide]
    middle.set_ylabel(_fitted(figure, loss_words(points), HEIGHT[width]))
    make_room(figure)
    for axes, family in zip(panels, families, strict=True):
        label_ends(axes, _ends(points[points["family"] == family], styles), LETTERS)
    return figure


def _fitted(figure, label, height):
    """The label of y in one line, or in two of about one length if one is longer than `height` inches."""
    if text_width(figure, [label], RC["axes.labelsize"]) <= height:
        return label
    return "\n".join(wrap(label, len(label) // 2 + LONGEST_WORD // 2))


def _ends(points, styles):
    """{label: (share in per cent, error, Style)} of the last points within the axes."""
    size = main_size(points)
    shown = points[points["loss"] <= top_of(points["loss"])].sort_values(size)
    last = shown.groupby("label", sort=True).tail(1)
    return {row.label: (100 * getattr(row, size), row.loss, styles[row.label]) for row in last.itertuples()}


def bytes_panel(axes, points, size, styles, own=None):
    """Draws the curves over one of the sizes for labels where `own` is true, and the front of all labels."""
    shown = points if own is None else points[own]
    for label, curve in shown[shown[size].notna()].groupby("label", sort=True):
        curve = curve.sort_values(size)
        at, hollow = 100 * curve[size].to_numpy(float), curve["n_rows"] < curve["n_cells"]
        error = curve["loss"]
        low, high = curve["loss_low"], curve["loss_high"]
        axes.vlines(at, low, high, color=styles[label].colour, linewidth=0.6, alpha=0.6)
        styles[label].curve(axes, at, error, hollow, 3.4, linewidth=0.8, alpha=0.8)
    _front(axes, points[points[f"front_{size}"].notna()].sort_values(size), size)


def has_front(points, size):
    """Whether the front is a line: one point alone has none."""
    return points[f"front_{size}"].notna().sum() > 1


def _front(axes, front, size):
    """Draws a staircase: at the bytes of a step, no method has an error below its height."""
    at, error = 100 * front[size].to_numpy(float), front["loss"].to_numpy()
    axes.step(at, error, where="post", zorder=1, **FRONT)


def asked_of(points):
    """The shares, in per cent, that points of the main size were requested at."""
    return sorted({share for text in points["asked"] for share in read_asked(text)})


def share_axis(axes, shares, asked=()):
    """The logarithmic x axis for `shares` of the full cache, in per cent, with ticks at those in `asked`."""
    low, high = 100 * np.nanmin(shares), 100 * np.nanmax(shares)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.25, high * 1.15)
    axes.xaxis.set_major_locator(
        FixedLocator([share for share in share_ticks(asked) if low / 1.25 <= share <= high * 1.15])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def share_ticks(asked):
    """Ticks in per cent: the shares that were requested, and those of SHARES that are not near one; if
    requested shares are so near each other that their numbers would touch, SHARES alone."""
    if any(larger < APART * share for share, larger in pairwise(asked)):
        return SHARES
    return sorted({*asked, *(each for each in SHARES if not any(_near(each, share) for share in asked))})


def _near(one, other):
    return max(one, other) < APART * min(one, other)


FRONT_TEXT = "Pareto front of all phases: no point has both lower error and fewer bytes"


def bytes_legend(points, size, styles):
    """Handles and texts, the largest error first, the front over `size` last."""
    worst_first = points.groupby("label")["loss"].mean().sort_values(ascending=False).index
    front = ["Pareto front"] if has_front(points, size) else []
    handles = [styles[label].handle() for label in worst_first]
    return [*handles, *(Line2D([], [], **FRONT) for _ in front)], [*worst_first, *front]


def _note(points):
    parts = [
        "Points of a curve are its budgets; bars: 95 % intervals over layers. Bytes: everything that is"
        " stored for one kv head (keys, values, weights, scores, sketches, indices)"
        f" {COUNTED[main_size(points)]}."
    ]
    if points["oracle"].any():
        parts.append("Dashed: oracles, which no cache can match; they are not in the front.")
    if (points["n_rows"] < points["n_cells"]).any():
        parts.append("Hollow: some cells have no result.")
    return " ".join(parts + above_notes(points, "loss"))


def _left_out(run, points):
    """A sentence on the labels without a point, with a space before it; empty if there are none."""
    labels = sorted(set(run.rows["label"]) - set(points["label"]))
    return f" Not drawn (no error beyond rounding, or no result): {', '.join(labels)}." if labels else ""


def _caption(points):
    """The front in words: share, label, budget, error; and what the bars are."""
    size = main_size(points)
    front = points[points[f"front_{size}"].notna()].sort_values(size)
    named = "; ".join(_named(row, size) for row in front.to_dict("records"))
    return f"{FRONT_TEXT[0].upper()}{FRONT_TEXT[1:]}: {named}. Bars: 95 % intervals over layers."


def _named(row, size):
    budget = "" if pd.isna(row["budget_tokens"]) else f" B={row['budget_tokens']}"
    return f"{row['label']}{budget} ({100 * row[size]:.1f} %, {row['loss']:.3g})"
