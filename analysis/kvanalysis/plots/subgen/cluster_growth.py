"""Online clusters m(n) of SubGen's rule against n, for several radii, from `kvreplay clusterability`."""

from ...drawing.log_ticks import plain_log
from ...drawing.panel_grid import small_panels
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.clustering import curve, intervals, points_note, rows_of
from ...stats.verdict import RULE, Verdict, judge
from .views import VIEWS

LINEAR = 0.95  # exponents from here on count as linear growth
ROOM = 12  # factor by which the axis extends below the curves, for the numbers
PANEL_HEIGHT = 1.4  # inches
ACROSS = {COLUMN_WIDTH: (2,), PAGE_WIDTH: (4, 3)}


def data(run):
    """(clusters m(n) over heads, growth exponents) of the cluster step."""
    table = run.cluster()
    return intervals(curve(table, "m_count"), ["param", "view", "x"]), exponents(table)


def draw(run, found):
    counts, powers = found

    def paint(axes, factor):
        _panel(axes, counts[counts["param"] == factor], powers[powers["delta_rel"] == factor])
        axes.set_ylim(counts["mean"].min() / ROOM, 2 * counts["x"].max())
        axes.set_title(f"delta = {factor:g} x median")

    labels = ("tokens n", "clusters m(n)")
    factors, note = sorted(counts["param"].unique()), _note(run.cluster())
    panels = small_panels(paint, factors, labels, note, ACROSS, PANEL_HEIGHT, wspace=0.16)
    table = counts.rename(columns={"param": "delta_rel", "x": "tokens"})
    return [Picture("Clusters against tokens", table, panels, _caption(powers), more={"exponents": powers})]


def claims(_run, found):
    powers = found[1]
    return [_verdict(powers, view) for view in VIEWS if (powers["view"] == view).any()]


def exponents(table):
    """For each radius and view: mean growth exponent over heads, its interval, and the smallest and
    largest."""
    rows = rows_of(table, "growth_exponent")
    found = intervals(rows, ["param", "view"]).rename(columns={"param": "delta_rel"})
    extremes = rows.groupby(["param", "view"], sort=True)["value"].agg(["min", "max"]).reset_index()
    fits = rows_of(table, "growth_r2").groupby(["param", "view"])["value"].mean()
    found = found.assign(smallest=extremes["min"], largest=extremes["max"])
    found["mean_r2"] = [
        fits.get(key, float("nan")) for key in zip(found["delta_rel"], found["view"], strict=True)
    ]
    return found


def _panel(axes, counts, powers):
    axes.set(yscale="log")
    axes.set_xscale("log", base=2)
    ticks = sorted(counts["x"].unique())
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    plain_log(axes.yaxis, (1,))
    for place, (view, style) in enumerate(VIEWS.items()):
        mine = counts[counts["view"] == view].sort_values("x")
        if mine.empty:
            continue
        style.band(axes, mine["x"], mine["low"], mine["high"])
        line = {"color": style.colour, "linestyle": style.dashes, "marker": style.marker}
        axes.plot(mine["x"], mine["mean"], **line, label=style.name)
        power = powers[powers["view"] == view]
        if len(power):
            height, said = 0.05 + 0.09 * (len(VIEWS) - 1 - place), f"{power['mean'].iloc[0]:.2f}"
            axes.text(
                0.97, height, said, ha="right", color=style.colour, fontsize=6, transform=axes.transAxes
            )
    axes.plot(ticks, ticks, color="#999999", linewidth=0.7, label="m = n")


def _note(table):
    return (
        f"{points_note(table)} Numbers in the panels, in the legend's order: mean exponent over heads (slope"
        " of ln m against ln n). delta is a share of the median distance of two points in the whole set."
    )


def _caption(powers):
    texts = []
    for view, rows in powers.groupby("view", sort=False):
        words = [f"{r.delta_rel:g}: {r.mean:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in rows.itertuples()]
        texts.append(f"{VIEWS[view].name} {', '.join(words)}")
    said = "Growth exponent by delta over the median distance, mean over heads with interval"
    return f"{said}: {'; '.join(texts)}."


def _verdict(powers, view):
    rows = powers[powers["view"] == view]
    text = "; ".join(f"{r.delta_rel:g}: {r.mean:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in rows.itertuples())
    return Verdict(
        f"The number of clusters grows more slowly than n: {VIEWS[view].name}",
        "SubGen, Definition 1 and Corollary 1",
        f"95 % interval of the exponent, claimed below {LINEAR}, at every delta: {RULE}",
        judge(zip(rows["low"], rows["high"], strict=True), LINEAR),
        text,
    )
