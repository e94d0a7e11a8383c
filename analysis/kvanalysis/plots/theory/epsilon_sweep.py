"""Methods whose size follows from a guaranteed epsilon: whether the error stays below it, and the memory it
takes.

Options of a configuration: `data` maps run steps to their titles, in order. A row of the CSV is one (step,
curve, epsilon).
"""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ...drawing.log_ticks import plain_log, subs_for, ticks_at
from ...drawing.saving import Picture, in_grid
from ...drawing.style import DASHED, DOTTED, styles_for
from ...stats.verdict import RULE, Verdict, judge, near
from ...stats.words import replay_note
from .epsilon_points import THEOREMS, points, slope_text, swept

KIB = 1024
TOLERANCE = 0.25  # tolerance of an exponent
GREY = "#555555"
NOTE = (
    "Error: the left side of the method's theorem, mean over heads and rows: |z-o|/(|x| |V|op) for SubGen,"
    " |z-o|/(|x| |V|F) for BalanceKV. Bands: 95 % over layers, seeds averaged first. Dotted: error ="
    " epsilon, and the exponent of the theory through the mean of the points (-2 SubGen, -1 BalanceKV, whose"
    " batch is a constant over epsilon)."
)
AXES = {"epsilon": "requested epsilon", "error": "measured error", "bytes": "size per head [KiB]"}
PANELS = (("epsilon", "error"), ("epsilon", "bytes"), ("error", "bytes"))


def data(run):
    """A row per (step, curve, epsilon)."""
    return pd.concat(
        [points(rows, step) for step in run.option("data") for _, rows in _swept(run, step).groupby("curve")]
    )


def draw(run, table):
    titles, styles = run.option("data"), styles_for(sorted(table["curve"].unique()), set())
    panels = [
        _panel(table[table["step"] == step], *axes, title, styles)
        for step, title in titles.items()
        for axes in PANELS
    ]
    drawn = in_grid(panels, _legend(styles), _note(run, titles))
    return [Picture("Guaranteed epsilon: error and size", table, drawn, _caption(table, titles))]


def claims(run, table):
    titles, groups = run.option("data"), table.groupby(["step", "curve"], sort=False)
    of_each = [(f"{titles[step]}, {curve}", rows) for (step, curve), rows in groups]
    return [verdict(name, rows) for name, rows in of_each for verdict in (_promise, _price)]


def _swept(run, step):
    return swept(run.frame(step), f"{run.config.path}: step {step}")


def _legend(styles):
    hollow = Line2D([], [], linestyle="", marker="o", color=GREY, markerfacecolor="white")
    dotted = Line2D([], [], color=GREY, linestyle=DOTTED)
    dashed = Line2D([], [], color=GREY, linestyle=DASHED, linewidth=0.8)
    handles = [*(style.handle() for style in styles.values()), hollow, dotted, dashed]
    return handles, [
        *styles,
        "hollow: smaller than epsilon requires",
        "dotted: theory",
        "full cache",
    ]


def _note(run, titles):
    frames = {title: _swept(run, step) for step, title in titles.items()}
    said = [
        f"{title.capitalize()}: {replay_note(rows[rows['trace_id'] == rows['trace_id'].iloc[0]])}"
        for title, rows in frames.items()
    ]
    return " ".join([*said, NOTE])


def _panel(table, x, y, title, styles):
    unit = KIB if y == "bytes" else 1

    def panel(axes):
        for curve, rows in table.groupby("curve", sort=True):
            _curve(axes, rows, x, y, unit, styles[curve])
        if y == "error":
            ends = [table["epsilon"].min(), table["epsilon"].max()]
            axes.plot(ends, ends, color=GREY, linestyle=DOTTED, linewidth=1)
        else:
            axes.axhline(table["full_bytes"].mean() / unit, color=GREY, linestyle=DASHED, linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel=AXES[x], ylabel=AXES[y])
        plain_log(
            axes.yaxis, subs_for(np.r_[table[y] / unit, table["full_bytes"] / unit if y == "bytes" else []])
        )
        if x == "epsilon":
            ticks_at(axes.xaxis, sorted(table["epsilon"].unique()))
        else:
            plain_log(axes.xaxis, subs_for(table[x]))
        axes.set_title(title, fontsize=6.5)

    return panel


def _curve(axes, rows, x, y, unit, style):
    low, high = rows[f"{y}_low"] / unit, rows[f"{y}_high"] / unit
    style.band(axes, rows[x], low, high)
    style.curve(axes, rows[x], rows[y] / unit, rows["capped"] > 0, size=3.5)
    if y == "bytes":
        middle = np.log(rows[x]).mean(), np.log(rows[y]).mean()
        line = np.exp(middle[1] + rows["theory_slope"] * (np.log(rows[x]) - middle[0]))
        axes.plot(rows[x], line / unit, color=style.colour, linestyle=DOTTED, linewidth=1)


def _caption(table, titles):
    said = []
    for (step, curve), rows in table.groupby(["step", "curve"], sort=False):
        row, asked, held = rows.iloc[0], rows["log10_theory"], rows["held"]
        said.append(
            f"{titles[step]}, {curve}: bytes ~ epsilon^{slope_text(row, 'bytes')} (theory"
            f" {row['theory_slope']:g}), error ~ epsilon^{slope_text(row, 'error')}, bytes ~"
            f" error^{slope_text(row, 'bytes_by_error')}; theory requires 10^{asked.min():.1f} to"
            f" 10^{asked.max():.1f} rows, the caches hold {held.min():.0f} to {held.max():.0f}"
        )
    return "; ".join(said) + "."


def _promise(name, rows):
    margins = zip(rows["error_low"] - rows["epsilon"], rows["error_high"] - rows["epsilon"], strict=True)
    means = zip(rows["epsilon"], rows["error"], rows["error_max"], strict=True)
    return Verdict(
        claim=f"{name}: the mean error stays below epsilon",
        source=THEOREMS[rows["method"].iloc[0]][2],
        how=f"95 % interval of the mean error minus epsilon, at every epsilon: {RULE}; sizes may be capped",
        outcome=judge(margins),
        numbers="; ".join(f"epsilon {e:g}: mean {mean:.3g}, maximum {most:.2g}" for e, mean, most in means),
    )


def _price(name, rows):
    row = rows.iloc[0]
    low, high = (row[f"bytes_by_error_slope{end}"] for end in ("_low", "_high"))
    return Verdict(
        claim=f"{name}: memory grows as error^{row['theory_slope']:g}",
        source=THEOREMS[row["method"]][2],
        how="the interval over layers of the exponent of bytes in the measured error lies within"
        f" {TOLERANCE:g} of it; not decided if it only reaches into that range",
        outcome=near(row["theory_slope"], low, high, TOLERANCE),
        numbers=f"error^{slope_text(row, 'bytes_by_error')}; by its sizes epsilon^{slope_text(row, 'bytes')}",
    )
