"""Draws error against budget on one set of axes: curves, bands, levels, ticks."""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .log_ticks import plain_log
from .style import DOTTED, styles_for

# A mean error below this is rounding of the replay's own arithmetic (float32), not an error to plot.
ROUNDING = 1e-5
AS_ZEROS = 1.0  # the error of an output of zeros
ROOM_BELOW = 0.85  # factor below the smallest error
MOST_CURVES = 12  # largest number of curves that a reader can distinguish
LOG_RATIO = 5  # from this ratio of largest to smallest error on, a linear axis would flatten the good methods
TICK_ROOM = 0.28  # inches; tick labels of budgets closer than this would overlap
SIDE_BY_SIDE = 0.08  # range, in powers of two, over which the labels of a single budget are spread
BAND_OPACITY = 0.13
MOST_BANDS = 10  # with more curves, overlapping bands would hide every curve


def drawable(points):
    """The rows of a summary that can be drawn: a mean error above rounding."""
    return points[points["rel_err_out_mean"] > ROUNDING]


def styles_of(points):
    """{label: Style} for everything in a run's summary, identical in all of its figures.

    Labels without an error to draw come last, so that they take no colour from the others.
    """
    shown = set(drawable(points)["label"])
    held = set(points.loc[points["oracle"] | points["full_cache"], "label"])
    return styles_for(sorted(points["label"].unique(), key=lambda label: (label not in shown, label)), held)


def draw(axes, points, styles):
    """Curves of every label in `points` (rows of `summarise`, so budgets rise; one panel)."""
    curves = points[points["budget_tokens"].notna()]
    for label, rows in curves.groupby("label", sort=True):
        _curve(axes, rows, styles[label], _aside(label, curves), banded(styles))
    for _, row in points[points["budget_tokens"].isna()].iterrows():
        _level(axes, row, styles[row["label"]])


def banded(shown):
    """Whether the curves of a figure of the labels `shown` have bands."""
    return len(shown) <= MOST_BANDS


def _aside(label, curves):
    """A factor on the budget: 1, unless only one budget was run; then the labels stand side by side."""
    labels = sorted(curves["label"].unique())
    if len(labels) < 2 or curves["budget_tokens"].nunique() > 1:
        return 1.0
    return 2.0 ** (SIDE_BY_SIDE * (labels.index(label) / (len(labels) - 1) - 0.5))


def _curve(axes, rows, style, aside, with_band):
    budget = rows["budget_tokens"].to_numpy(dtype=float) * aside
    error, low, high = (rows[name].to_numpy() for name in ("rel_err_out_mean", "rel_err_low", "rel_err_high"))
    if len(rows) > 1:
        if with_band:
            style.band(axes, budget, low, high)
    elif np.isfinite(low[0]):
        axes.vlines(budget, low, high, color=style.colour, linewidth=0.8)
    # Hollow where cells are missing: such a mean covers other heads than its neighbours.
    style.curve(axes, budget, error, rows["n_rows"] < rows["n_cells"])


def _level(axes, row, style):
    axes.axhspan(
        row["rel_err_low"], row["rel_err_high"], color=style.colour, alpha=BAND_OPACITY / 2, linewidth=0
    )
    axes.axhline(row["rel_err_out_mean"], color=style.colour, linestyle=DOTTED)


def handle(style, with_budget):
    """The legend entry of a label: its curve, or its dotted level if it has no budget."""
    return style.handle() if with_budget else Line2D([], [], color=style.colour, linestyle=DOTTED)


def legend_text(rows):
    """The label, and the meaning of its line style in words."""
    notes = []
    if rows["oracle"].any():
        notes.append("oracle")
    if rows["full_cache"].any():
        notes.append("holds the full cache")
    if rows["budget_tokens"].isna().all():
        notes.append(f"no budget, keeps {rows['peak_kept_tokens'].mean():.0f} tokens")
    return rows["label"].iloc[0] + (f" ({', '.join(notes)})" if notes else "")


def set_budget_axis(axes, budgets, width):
    """Logarithmic, with ticks at the budgets that were run; `width`: width of the axes in inches."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    if not budgets:
        axes.xaxis.set_major_locator(NullLocator())
        return
    axes.xaxis.set_major_locator(FixedLocator(_spaced(budgets, TICK_ROOM / width)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    margin = max(budgets[-1] / budgets[0], 2.0) ** 0.06
    axes.set_xlim(budgets[0] / margin, budgets[-1] * margin)


def _spaced(budgets, gap):
    """The budgets whose labels fit, the smallest first."""
    span = np.log(budgets[-1] / budgets[0]) or 1.0
    kept = [budgets[0]]
    for budget in budgets[1:]:
        if np.log(budget / kept[-1]) >= gap * span:
            kept.append(budget)
    return kept


def top_of(errors):
    """The largest error on an axis: errors near that of an output of zeros would flatten everything else."""
    return AS_ZEROS if (np.asarray(errors) < AS_ZEROS).any() else np.inf


def frame_errors(axes, errors):
    """`set_error_axis` with ends that ignore intervals and errors near that of zeros. `errors`: a series."""
    top = top_of(errors)
    set_error_axis(axes, errors[errors <= top])
    if np.isfinite(top) and errors.max() > top:
        axes.set_ylim(top=top)
    if axes.get_yscale() == "log":
        axes.set_ylim(bottom=ROOM_BELOW * errors.min())


def above_notes(points, measure="rel_err_out_mean"):
    """[a sentence about points above the axis of `frame_errors`], [] if there are none; rows of a summary."""
    points = drawable(points)
    above = points[points[measure] > top_of(points[measure])]
    spans = above.groupby("label")[measure].agg(["min", "max"])
    texts = [
        f"{label} {low:.2f}" + (f" to {high:.2f}" if high > low else "")
        for label, low, high in spans.itertuples()
    ]
    return [f"Above the axis (1: as wrong as an output of zeros): {'; '.join(texts)}."] if texts else []


def set_error_axis(axes, errors, along="y"):
    """Logarithmic if the errors span a large ratio, else linear from zero."""
    errors = np.asarray(errors, dtype=float)
    if len(errors) and errors.max() / errors.min() >= LOG_RATIO:
        {"x": axes.set_xscale, "y": axes.set_yscale}[along]("log")
        plain_log({"x": axes.xaxis, "y": axes.yaxis}[along])
    elif along == "y":
        axes.set_ylim(bottom=0)
    else:
        axes.set_xlim(left=0)
