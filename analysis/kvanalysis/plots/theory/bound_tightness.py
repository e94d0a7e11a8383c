"""Theorems compared with measurements: slack, share of rows within the bound, sizes.

Options of a configuration: `data` maps run steps to their titles, in order. A row of the CSV is one (step,
curve, epsilon). A violation is a mean share of rows within the bound below the probability that the theorem
guarantees.
"""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ...drawing.log_ticks import plain_log, subs_for, ticks_at
from ...drawing.saving import Picture, in_grid
from ...drawing.style import DASHED, DOTTED, styles_for
from ...errors import FigureError
from ...stats.intervals import mean_interval, unit_means, used_rows
from ...stats.verdict import Verdict, of_counts
from ...stats.words import replay_note
from .epsilon_points import THEOREMS, curve_name

NEEDED = ("bound_epsilon", "bound_slack", "bound_holds", "bound_probability", "bound_capped")
MEASURES = ["log_slack", *NEEDED[2:], "bound_log10_tokens", "log10_held", "log10_n"]
GREY, RING = "#555555", "#000000"
NOTE = (
    "Slack: promised over measured epsilon, in the norm of the method's theorem; geometric mean over heads."
    " Share: of (query head, row) pairs with the error within the bound. Bars: 95 % intervals over layers,"
    " seeds averaged first. Dotted: slack 1; the guaranteed probability; as many rows as the theorem requires"
    " with the configured constants."
)


def data(run):
    """A row per (step, curve, epsilon)."""
    return pd.concat([_points(_promised(run, step), step) for step in _titles(run)])


def draw(run, table):
    titles, styles = _titles(run), styles_for(sorted(table["curve"].unique()), set())
    panels = [
        panel(table[table["step"] == step], title, styles)
        for step, title in titles.items()
        for panel in (_slack_panel, _share_panel, _size_panel)
    ]
    notes = (
        f"{title.capitalize()}: {replay_note(_one_trace(_promised(run, step)))}"
        for step, title in titles.items()
    )
    drawn = in_grid(panels, _legend(styles), f"{' '.join(notes)} {NOTE}")
    return [Picture("Theorem and measurement", table, drawn, _caption(table, titles))]


def claims(run, table):
    titles = _titles(run)
    return [
        _verdict(f"{titles[step]}, {curve}", rows)
        for (step, curve), rows in table.groupby(["step", "curve"], sort=False)
    ]


def _titles(run):
    return run.option("data", {"run": "recorded keys"})


def _one_trace(rows):
    return rows[rows["trace_id"] == rows["trace_id"].iloc[0]]


def _promised(run, step):
    """The used rows of methods with a theorem, with logarithms of slack and sizes."""
    frame = run.frame(step)
    missing = [name for name in NEEDED if name not in frame]
    if missing:
        raise FigureError(f"{run.config.path}: step {step}: the results lack {', '.join(missing)}")
    rows = used_rows(frame)
    rows = rows[rows["bound_epsilon"].notna() & rows["bound_holds"].notna()]
    if rows.empty:
        raise FigureError(
            f"{run.config.path}: step {step}: no finished cell has a bound; use a method with a theorem,"
            " such as subgen_stream with epsilon, or balancekv_stream"
        )
    return rows.assign(
        curve=[curve_name(*pair) for pair in zip(rows["method"], rows["params"], strict=True)],
        log_slack=np.log(rows["bound_slack"].where(rows["bound_slack"] > 0)),
        log10_held=np.log10(rows["peak_attended_tokens"]),
        log10_n=np.log10(rows["n_tokens"].astype(float)),
    )


def _points(rows, step):
    groups = unit_means(rows, MEASURES, ["curve", "bound_epsilon"]).groupby(["curve", "bound_epsilon"])
    table = pd.DataFrame([(*key, *_means(units)) for key, units in groups], columns=_COLUMNS)
    methods = rows.drop_duplicates("curve").set_index("curve")["method"]
    return table.assign(
        step=step,
        method=table["curve"].map(methods),
        violated=(table["share"] < table["probability"]).astype(int),
    )


_COLUMNS = [
    *("curve", "epsilon", "slack", "slack_low", "slack_high", "share", "share_low", "share_high"),
    *("probability", "capped", "log10_asked", "log10_held", "log10_n", "n_heads", "heads_violated"),
]


def _means(units):
    slack, share = mean_interval(units["log_slack"].dropna()), mean_interval(units["bound_holds"])
    rest = units[["bound_probability", "bound_capped", "bound_log10_tokens", "log10_held", "log10_n"]].mean()
    below = (units["bound_holds"] < units["bound_probability"]).sum()
    return *np.exp(slack), *share, *rest, len(units), int(below)


def _legend(styles):
    hollow = Line2D([], [], linestyle="", marker="o", color=GREY, markerfacecolor="white")
    ring = Line2D([], [], linestyle="", marker="o", markersize=8, color=RING, markerfacecolor="none")
    lines = [Line2D([], [], color=GREY, linestyle=dashes) for dashes in (DOTTED, DASHED)]
    handles = [*(style.handle() for style in styles.values()), hollow, ring, *lines]
    words = ["hollow: smaller than required", "ring: violation", "dotted: guarantee", "n rows"]
    return handles, [*styles, *words]


def _draw_points(axes, rows, y, style, x="epsilon"):
    if f"{y}_low" in rows:
        axes.vlines(rows[x], rows[f"{y}_low"], rows[f"{y}_high"], color=style.colour, linewidth=0.8)
    style.curve(axes, rows[x], rows[y], rows["capped"] > 0, size=3.5, linewidth=0.9)


def _epsilon_panel(axes, table, title, y, styles):
    for curve, rows in table.groupby("curve", sort=True):
        _draw_points(axes, rows, y, styles[curve])
    axes.set(xscale="log", xlabel="guaranteed epsilon")
    ticks_at(axes.xaxis, sorted(table["epsilon"].unique()))
    axes.set_title(title, fontsize=6.5)


def _slack_panel(table, title, styles):
    def panel(axes):
        _epsilon_panel(axes, table, title, "slack", styles)
        axes.axhline(1, color=GREY, linestyle=DOTTED, linewidth=1)
        axes.set(yscale="log", ylabel="slack")
        plain_log(axes.yaxis, subs_for([*table["slack"], 1.0]))

    return panel


def _share_panel(table, title, styles):
    def panel(axes):
        _epsilon_panel(axes, table, title, "share", styles)
        for probability in table["probability"].dropna().unique():
            axes.axhline(probability, color=GREY, linestyle=DOTTED, linewidth=1)
        bad = table[table["violated"] > 0]
        axes.plot(bad["epsilon"], bad["share"], "o", color=RING, markerfacecolor="none", markersize=8)
        axes.set(ylabel="share within the bound")
        axes.set_ylim(top=1 + 0.04 * (1 - min(table["share"].min(), 0.9)))

    return panel


def _size_panel(table, title, styles):
    def panel(axes):
        for curve, rows in table.groupby("curve", sort=True):
            _draw_points(axes, rows, "log10_held", styles[curve], x="log10_asked")
        ends = np.array(axes.get_ylim())
        axes.plot(ends, ends, color=GREY, linestyle=DOTTED, linewidth=1)
        axes.axhline(table["log10_n"].mean(), color=GREY, linestyle=DASHED, linewidth=0.8)
        axes.set_title(title, fontsize=6.5)
        axes.set(xlabel="log10 of the required rows", ylabel="log10 of the rows held")

    return panel


def _caption(table, titles):
    said = []
    for (step, curve), rows in table.groupby(["step", "curve"], sort=False):
        each = "; ".join(
            f"epsilon {row['epsilon']:g}: slack {row['slack']:.3g}, {row['share']:.1%} within (guaranteed"
            f" {row['probability']:.0%}), rows required 10^{row['log10_asked']:.1f}, held"
            f" 10^{row['log10_held']:.1f}"
            for _, row in rows.iterrows()
        )
        said.append(f"{titles[step]}, {curve}: {each}")
    return ". ".join(said) + "."


def _verdict(name, rows):
    """The verdict. Capped sizes test only the capped method, so the claim says so."""
    capped = ", at sizes below the required ones" if rows["capped"].max() > 0 else ""
    method = rows["method"].iloc[0]
    return Verdict(
        claim=f"{name}: the error is within the bound as often as the theorem guarantees{capped}",
        source=THEOREMS.get(method, (method,))[-1],
        how="the mean share over heads is at least the theorem's probability, at every epsilon;"
        " constants of the theory are 1 unless stated",
        outcome=of_counts(int((rows["violated"] == 0).sum()), len(rows)),
        numbers="; ".join(
            f"epsilon {row['epsilon']:g}: {row['share']:.1%} where {row['probability']:.0%} is guaranteed,"
            f" {row['heads_violated']:.0f} of {row['n_heads']:.0f} heads below"
            for _, row in rows.iterrows()
        ),
    )
