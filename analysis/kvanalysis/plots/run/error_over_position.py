"""Error against the position of the query, from just after the prompt to far behind it."""

from functools import partial

from matplotlib.ticker import FixedLocator, MaxNLocator

from ...drawing.budget_axes import handle, set_error_axis
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, finish, new_figure
from ...stats.families import FAMILIES, at_budget, budget_columns, budget_words, families, middle_budget
from .compared import shares_note
from .positions import along_rows, by_quarters

MOST_CURVES = 7  # curves in a panel
SIZES = {COLUMN_WIDTH: (1.5, 1), PAGE_WIDTH: (2.2, 3)}
PANEL_GAP = 0.3  # share of a panel's height


def data(run, budget=None):
    """(errors along the rows at one budget, a phrase on their source: curves.h5, or four quarters, the
    budget)."""
    rivals = families(run.rows)
    budget = budget or middle_budget(rivals)
    rivals = at_budget(rivals, budget) if budget else rivals[:0]
    table, source = along_rows(rivals)
    if table.empty:
        return None
    family = table["label"].map(rivals.groupby("label")["family"].first())
    return table.assign(**budget_columns(budget), family=family), source, budget


def draw(run, found):
    """A panel for each family."""
    table, source, budget = found
    shown = _shown(table)
    note = _note(table, shown, source, shares_note(run.rows))
    paint = partial(_figure, table, shown, run.styles, budget_words(budget), note)
    title = f"Error over position, {budget_words(budget)}"
    return [Picture(title, table, paint, _caption(table, shown), name="error_over_position")]


def _shown(table):
    """{family: its labels with the lowest mean errors, the largest of them first}."""
    means = table.groupby(["family", "label"])["rel_err_mean"].mean()
    return {
        family: list(means[family].sort_values().index[:MOST_CURVES][::-1])
        for family in FAMILIES
        if family in means
    }


def _figure(table, shown, styles, at, note, width):
    height, wide = SIZES[width]
    wide = min(wide, len(shown))
    high = -(-len(shown) // wide)
    figure = new_figure(width)
    panels = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
    labels = [label for own in shown.values() for label in own]
    drawn = table[table["label"].isin(labels)]
    for axes, family in zip(panels.flat, shown, strict=False):
        axes.set_title(f"{family}, {at}")
        for label in shown[family]:
            position_curve(axes, table[table["label"] == label], styles[label])
        set_error_axis(axes, drawn["rel_err_mean"])
        set_position_axis(axes, table)
        axes.label_outer()
    for axes in list(panels.flat)[len(shown) :]:
        axes.remove()
    _limit_low_end(panels[0][0], drawn["rel_err_mean"].min())
    panels[0][0].set_ylabel("mean rel. error")
    tall = height * (high + (high - 1) * PANEL_GAP)
    handles = [handle(styles[label], True) for label in labels]
    finish(figure, handles, labels, note, tall, hspace=PANEL_GAP, wspace=0.06, top=0.26)
    return figure


def _limit_low_end(axes, least):
    """Ends the axis above lower ends near 0 (few layers), which would press curves together on a logarithmic
    axis."""
    if axes.get_yscale() == "log":
        axes.set_ylim(bottom=max(axes.get_ylim()[0], least / 2))


def set_position_axis(axes, table):
    axes.set_xlabel("quarter of the scored rows" if by_quarters(table) else "token position")
    axes.xaxis.set_major_locator(FixedLocator([1, 2, 3, 4]) if by_quarters(table) else MaxNLocator(5))


def position_curve(axes, rows, style):
    """The curve of one label, with its band. `rows`: from `positions.along_rows`."""
    at = rows["position"].to_numpy()
    low, high = rows["rel_err_low"], rows["rel_err_high"]
    style.band(axes, at, low, high)
    look = {"color": style.colour, "linestyle": style.dashes, "marker": style.marker, "markersize": 3}
    axes.plot(at, rows["rel_err_mean"], **look, markevery=max(1, len(at) // 5), linewidth=1.0)


def _note(table, shown, source, more):
    parts = [source, *more]
    left_out = sorted(set(table["label"]) - {label for own in shown.values() for label in own})
    if left_out:
        parts.append(f"Not drawn, in the CSV: {', '.join(left_out)}.")
    return " ".join(parts)


def _caption(table, shown):
    """The error in the first and in the last quarter of the positions."""
    texts = []
    for label in (label for own in shown.values() for label in reversed(own)):
        curve = table[table["label"] == label].sort_values("position")["rel_err_mean"].to_numpy()
        part = max(1, len(curve) // 4)
        texts.append(f"{label} {curve[:part].mean():.3g} to {curve[-part:].mean():.3g}")
    return f"First to last quarter: {'; '.join(texts)}."
