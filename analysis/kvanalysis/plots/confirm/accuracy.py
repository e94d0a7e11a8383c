"""The share of right answers against bytes, a panel for each task, for a results folder whose confirm.csv
holds written answers."""

from functools import partial

from kvbase.shares import wilson

from ...data.confirmed import confirmed
from ...drawing.log_ticks import plain_log, subs_for
from ...drawing.panel_grid import fewest_empty, finish_grid, label_outer, panel_grid
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, DASHED, PAGE_WIDTH, new_figure
from ...predict.answers import answer_rows
from ...stats.format import percent
from ...stats.words import count

ACROSS = {COLUMN_WIDTH: (1,), PAGE_WIDTH: (3, 2)}
PANEL_HEIGHT = {COLUMN_WIDTH: 1.9, PAGE_WIDTH: 1.9}  # inches
PANEL_GAP, WSPACE = 0.35, 0.07  # shares of a panel
FULL_COLOUR = "#555555"
MARGIN = 1.2  # room beyond the outermost points, as a factor
SHIFT = 0.005  # by which share of the axis methods stand beside each other


def data(run):
    """A row per group, label and budget: n, accuracy with its 95 % interval (Wilson), accuracy_full and
    bytes_share; None without written answers."""
    confirmation = confirmed(run.rows, whole=False)
    rows = None if confirmation is None else answer_rows(run.rows, confirmation, run.losses)
    if rows is None or rows.empty:
        return None
    by_point = rows.groupby(["group", "label", "oracle", "place"])
    table = by_point.agg(
        n=("prompt", "nunique"),
        wrong=("wrong", "mean"),
        full=("wrong_full", "mean"),
        bytes_share=("bytes_share", "mean"),
    ).reset_index()
    table = table.assign(accuracy=1 - table["wrong"], accuracy_full=1 - table["full"])
    ends = [wilson(row.accuracy, row.n) for row in table.itertuples()]
    table[["low", "high"]] = ends
    return table.drop(columns=["wrong", "full"])


def draw(run, table):
    """A panel for each group of prompts."""
    paint = partial(_figure, table, run.styles)
    return [Picture("Right answers against bytes", table, paint, _caption(table), name="accuracy")]


def _figure(table, styles, width):
    groups = sorted(table["group"].unique())
    across = fewest_empty(len(groups), ACROSS[width])
    figure = new_figure(width)
    panels = panel_grid(figure, len(groups), across, sharex=True, sharey=True)
    for axes, group in zip(panels, groups, strict=True):
        own = table[table["group"] == group]
        _panel(axes, own, styles)
        axes.set_title(f"{group or 'all prompts'} ({count(int(own['n'].max()), 'prompt')})")
    shares = 100 * table["bytes_share"].to_numpy()
    panels[0].set(xscale="log", xlim=(shares.min() / MARGIN, shares.max() * MARGIN), ylim=(-0.03, 1.03))
    plain_log(panels[0].xaxis, subs_for(shares))
    label_outer(panels, across, "bytes after the cut [% of full]", "score of the answers")
    order = list(table.groupby("label")["accuracy"].mean().sort_values(ascending=False, kind="stable").index)
    legend = ([styles[label].handle(linewidth=0.7) for label in order], order)
    note = (
        "Bytes: of the prompt; methods stand a little beside each other. Dashed: the full cache. "
        "Bars: 95 % interval of a share (Wilson) over prompts."
    )
    finish_grid(figure, legend, note, len(groups), across, PANEL_HEIGHT[width], PANEL_GAP, WSPACE)
    return figure


def _panel(axes, own, styles):
    axes.axhline(own["accuracy_full"].iloc[0], color=FULL_COLOUR, linestyle=DASHED, linewidth=0.6, zorder=1)
    labels = sorted(own["label"].unique())
    for number, label in enumerate(labels):
        rows = own[own["label"] == label].sort_values("bytes_share")
        style = styles[label]
        at = 100 * rows["bytes_share"] * (1 + SHIFT * (number - len(labels) / 2))
        face = "white" if rows["oracle"].any() else style.colour
        axes.vlines(at, rows["low"], rows["high"], style.colour, linewidth=0.4, alpha=0.45)
        axes.plot(at, rows["accuracy"], color=style.colour, linestyle=style.dashes, linewidth=0.5, alpha=0.6)
        axes.plot(at, rows["accuracy"], style.marker, color=style.colour, markersize=3, markerfacecolor=face)


def _caption(table):
    best = table[~table["oracle"].astype(bool)]
    best = best.sort_values(["accuracy", "bytes_share"], ascending=[False, True], kind="stable")
    parts = []
    for group, own in table.groupby("group"):
        first = best[best["group"] == group].iloc[0]
        full, most = own["accuracy_full"].iloc[0], first["accuracy"]
        parts.append(
            f"{group or 'all prompts'}: full cache {percent(full)} %, most of a method {percent(most)} %"
            f" ({first['label']} at {percent(first['bytes_share'])} % of the bytes)"
        )
    most = count(int(table["n"].max()), "prompt")
    return f"{'; '.join(parts)}. The model wrote each answer over what was kept ({most} a task at most)."
