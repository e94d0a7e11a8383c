"""Mean error against budget with the knee of every curve."""

import numpy as np
from matplotlib.lines import Line2D

from ...budgets.knee import KNEE_DEPTH, knees, mean_curves
from ...drawing.budget_axes import set_budget_axis, set_error_axis
from ...drawing.saving import Picture, in_grid
from ...drawing.style import PAGE_WIDTH

STAR = {"linestyle": "", "marker": "*", "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.6}
RULE = (
    "Star: knee of the mean curve, the point farthest below the chord from the first to the last budget on"
    f" log-log axes; none if the depth is below {KNEE_DEPTH:g} of the chord's height (a power law is a"
    " straight line)."
)


def knee_picture(rows, measure, styles, note, name):
    """The Picture for the rows of one trace; its table has a row per head, and the mean curve."""
    by_head, mean = knees(rows, measure), mean_curves(rows, measure)

    def panel(axes):
        for label, points in mean.groupby("label", sort=True):
            _curve(axes, points, styles[label])
        set_budget_axis(axes, sorted({int(b) for b in mean["budget"]}), PAGE_WIDTH / 2)
        positive = mean.loc[mean["mean_error"] > 0, "mean_error"]
        set_error_axis(axes, positive if len(positive) else [1.0])
        axes.set(xlabel="budget [tokens per kv head]", ylabel=axis_name(measure))

    labels = sorted(mean["label"].unique())
    handles = [styles[label].handle() for label in labels]
    legend = ([*handles, Line2D([], [], color="#777777", **STAR)], [*labels, "knee"])
    drawn = in_grid([panel], legend, f"{note} {RULE}", height=2.4, titled=False)
    table = by_head.merge(mean, on="label", how="left")
    return Picture("Knee of error against budget", table, drawn, _caption(by_head, mean), name)


def axis_name(measure):
    return {"rel_err_out_mean": "mean rel. error"}.get(measure, measure)


def _curve(axes, points, style):
    budget = points["budget"]
    style.band(axes, budget, points["low"], points["high"])
    axes.plot(budget, points["mean_error"], style.marker, color=style.colour, linestyle=style.dashes, ms=3)
    at = points[points["budget"] == points["mean_knee"]]
    axes.plot(at["budget"], at["mean_error"], color=style.colour, **STAR)


def _caption(by_head, mean):
    parts = []
    for label, group in by_head.groupby("label", sort=True):
        found = group["knee_budget"].notna().sum()
        at = mean.loc[mean["label"] == label, "mean_knee"].iloc[0]
        whole = f"knee of the mean at {at:.0f}" if np.isfinite(at) else "mean curve without a knee"
        parts.append(f"{label}: {whole}, {found} of {len(group)} heads have one")
    return f"{RULE} {'; '.join(parts)}."
