"""Stored tokens and bytes against the length of the text, with the curves of the theory.

Every run step of the configuration is one length (replay.tokens). A row of the CSV is one (label, n).
"""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ...data.extras import extra
from ...drawing.log_ticks import plain_log, subs_for, ticks_at
from ...drawing.saving import Picture, in_grid
from ...drawing.style import DOTTED, styles_for
from ...errors import FigureError
from ...stats.fits import fit, slope
from ...stats.intervals import mean_interval, unit_means, used_rows
from ...stats.verdict import UNDECIDED, Verdict, judge, near
from ...stats.words import replay_note

# Growth of the stored rows with n, up to a factor, and its words. Sources: H2O and StreamingLLM: heavy +
# recent, sinks + window; KH-Compress: 2^g sqrt(N), N the largest power of four <= n; MergeAndReduce: at most
# t pairs on each of 1 + ceil(log2(n/t)) levels; SubGen, Theorem 1: m clusters of t + 1 keys, s slots, with
# measured m.
CONSTANT = ("a constant", lambda points: 0 * points["n"] + 1)
THEORY = {
    "exact": ("n", lambda points: points["n"]),
    **dict.fromkeys(("h2o", "h2o_heavy", "streaming_llm", "window", "local", "tova"), CONSTANT),
    "kernel_halving": (
        "sqrt of the power of 4",
        lambda points: 2.0 ** np.floor(np.log2(points["n"] - 1) / 2),
    ),
    "balancekv_stream": (
        "levels, log2(n/t)",
        lambda points: 1 + np.ceil(np.log2((points["n"] / points["batch"]).clip(lower=1))),
    ),
    "subgen_stream": ("m(n) (t+1) + s", lambda points: points["clusters"] * (points["t"] + 1) + points["s"]),
}
MEASURES = {"peak_kept_tokens": "stored tokens, peak", "total_bytes": "size per kv head, peak [KiB]"}
KIB = 1024
TOLERANCE = 0.1  # tolerance of an exponent


def data(run):
    """A row per (label, measure, n)."""
    return pd.concat([_points(rows, m) for _, rows in _lengths(run).groupby("label") for m in MEASURES])


def draw(run, points):
    frame = _lengths(run)
    styles = styles_for(sorted(frame["label"].unique()), set(frame.loc[frame["oracle"], "label"]))
    panels = [_panel(points[points["measure"] == measure], measure, styles) for measure in MEASURES]
    theory_line = Line2D([], [], color="#555555", linestyle=DOTTED)
    legend = (
        [*(styles[label].handle() for label in styles), theory_line],
        [*(_legend_text(points, label) for label in styles), "theory, through the mean of the points"],
    )
    text = (
        f"{_note(frame)} Exponent: least squares on logarithms for every head, mean and 95 % interval over"
        " layers. Peak sizes; bytes include weights and scores."
    )
    if frame["label"].str.contains("delta_rel").any():
        text += " A delta_rel is relative to the first n tokens, so delta changes with n."
    drawn = in_grid(panels, legend, text, on_page=2, height=2.1, titled=False)
    return [Picture("Memory against length", points, drawn, _caption(points))]


def _note(frame):
    lengths = ", ".join(f"{n:.0f}" for n in sorted(frame["n_tokens"].unique()))
    one = frame[frame["n_tokens"] == frame["n_tokens"].max()]
    return f"{replay_note(one[one['trace_id'] == one['trace_id'].iloc[0]])} First n tokens, n = {lengths}."


def _lengths(run):
    steps = [step.name for step in run.config.steps if step.command == "run"]
    frame = used_rows(pd.concat([run.frame(name) for name in steps], ignore_index=True))
    if frame["n_tokens"].nunique() < 2:
        raise FigureError(
            f"{run.config.path}: memory_vs_n needs finished cells at two or more lengths:"
            " use run steps with different replay.tokens"
        )
    return frame.assign(n=frame["n_tokens"].astype(float), clusters=extra(frame, "clusters"))


def _points(rows, measure):
    """A row per n for one label: mean over heads with interval, and the curve's slope and theory."""
    means = unit_means(rows, [measure, "clusters"], ["n"])
    points = pd.DataFrame(
        [
            (n, *mean_interval(group[measure]), len(group), group["clusters"].mean())
            for n, group in means.groupby("n")
        ],
        columns=["n", "mean", "low", "high", "n_heads", "clusters"],
    )
    fitted = slope(rows, "n", measure)
    method, params = rows["method"].iloc[0], rows["params"].iloc[0]
    words, shape = THEORY.get(method, ("", None))
    line = shape(points.assign(**_sizes(params))).to_numpy(float) if shape else np.full(len(points), np.nan)
    scaled = line * np.exp(np.mean(np.log(points["mean"]) - np.log(line))) if np.all(line > 0) else line
    return points.assign(
        label=rows["label"].iloc[0],
        method=method,
        measure=measure,
        exponent=fitted.value if fitted else np.nan,
        exponent_low=fitted.low if fitted else np.nan,
        exponent_high=fitted.high if fitted else np.nan,
        theory=words,
        theory_exponent=fit(points["n"], line),
        theory_line=scaled,
    )


def _sizes(params):
    return {name: float(params[name]) for name in ("t", "s", "batch") if params.get(name) is not None}


def _panel(points, measure, styles):
    unit = KIB if measure.endswith("bytes") else 1

    def panel(axes):
        for label, rows in points.groupby("label", sort=True):
            n, style = rows["n"], styles[label]
            style.band(axes, n, rows["low"] / unit, rows["high"] / unit)
            axes.plot(
                n, rows["mean"] / unit, style.marker, color=style.colour, linestyle=style.dashes, ms=3.5
            )
            axes.plot(n, rows["theory_line"] / unit, color=style.colour, linestyle=DOTTED, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks_at(axes.xaxis, sorted(points["n"].unique()))
        plain_log(axes.yaxis, subs_for(points["mean"] / unit))
        axes.set(xlabel="n, tokens of the text", ylabel=MEASURES[measure])

    return panel


def _exponent(points, label, measure):
    return points[(points["label"] == label) & (points["measure"] == measure)].iloc[0]


def _legend_text(points, label):
    row = _exponent(points, label, "peak_kept_tokens")
    theory = f", theory {row['theory']}" if row["theory"] else ""
    return f"{label}: n^{_interval(row)}{theory}"


def _interval(row):
    value = f"{row['exponent']:.2f}"
    if np.isnan(row["exponent_low"]) or row["exponent_high"] - row["exponent_low"] < 0.005:
        return value
    return f"{value} [{row['exponent_low']:.2f}, {row['exponent_high']:.2f}]"


def _caption(points):
    said = [
        f"{label}: tokens n^{_interval(_exponent(points, label, 'peak_kept_tokens'))},"
        f" bytes n^{_interval(_exponent(points, label, 'total_bytes'))}"
        for label in sorted(points["label"].unique())
    ]
    return "; ".join(said) + "."


def claims(run, points):
    frame, source, verdicts = _lengths(run), run.config.paper, []
    for label in sorted(points["label"].unique()):
        row = _exponent(points, label, "peak_kept_tokens")
        # SubGen's line is computed from the measured m(n), which is the subject of its claim.
        if np.isfinite(row["theory_exponent"]) and np.isnan(row["clusters"]):
            verdicts.append(_theory_verdict(row, source))
    for label, rows in frame[frame["clusters"].notna()].groupby("label", sort=True):
        verdicts.append(_sublinear(label, slope(rows, "n", "clusters"), source))
    return verdicts


def _theory_verdict(row, source):
    return Verdict(
        claim=f"{row['label']}: stored tokens grow as {row['theory']}",
        source=source,
        how=f"the interval of the fitted exponent lies within {TOLERANCE:g} of that of the theory over equal"
        f" n, {row['theory_exponent']:.2f}; does not hold if all of it lies outside, else not decided",
        outcome=near(row["theory_exponent"], row["exponent_low"], row["exponent_high"], TOLERANCE),
        numbers=f"n^{_interval(row)}",
    )


def _sublinear(label, fitted, source):
    outcome = UNDECIDED if fitted is None else judge([(fitted.low, fitted.high)], 1 - TOLERANCE)
    return Verdict(
        claim=f"{label}: the number of clusters m(n) is o(n), so memory is sub-linear",
        source="SubGen, Theorem 1",
        how=f"the interval over layers of the exponent of m lies below {1 - TOLERANCE:g}",
        outcome=outcome,
        numbers=f"m ~ n^{fitted.text()}" if fitted else "no fit",
    )
