"""BUZZ Fig. 4: error against T/w at one time average of the cache."""

import math

import pandas as pd

from ...drawing.curve_axes import ERROR, Axis
from ...drawing.curves import Sheet, curves_picture
from ...errors import ResultsError
from ...stats.intervals import LEVEL, head_points, holm
from ...stats.paired import compare
from ...stats.verdict import FAILS, HOLDS, UNDECIDED, Verdict
from ...stats.words import BAND_NOTE, replay_note
from .theory import mean_size, ratio_rule

PAPER_BEST = 4.5  # T/w of the best ROUGE score in the figure


def data(run):
    """The rows of buzz of all run steps, one for each pair of window and threshold, with `ratio` = T/w."""
    frames = [run.frame(step.name) for step in run.config.steps if step.command == "run"]
    rows = pd.concat(frames, ignore_index=True)
    rows = rows[rows["method"] == "buzz"]
    if rows.empty:
        raise ResultsError("no run step has rows of buzz")
    return rows.assign(ratio=[params["threshold"] / params["window"] for params in rows["params"]])


def draw(_run, rows):
    return [error_picture(rows, _rule(rows)), size_picture(rows)]


def claims(_run, rows):
    return [verdict(rows, _rule(rows))]


def _rule(rows):
    return ratio_rule(rows["params"].iloc[0]["stride"])


def error_picture(rows, rule):
    points = head_points(rows, "rel_err_out_mean", ["ratio"]).rename(columns={"ratio": "x"})
    best = points.loc[points["y"].idxmin()] if len(points) else None
    sheet = Sheet(
        title="Error against T/w",
        points=points.assign(panel="", label="buzz"),
        x=ratio_axis(rows, {f"the rule, T/w = {rule:.2f}": rule}),
        y=Axis(ERROR),
        note=f"{replay_note(rows)} {BAND_NOTE}",
        caption=f"Lowest mean error {best['y']:.3g} at T/w = {best['x']:.2f}; the paper's best ROUGE score"
        f" is at {PAPER_BEST:g}."
        " The bands show the spread over layers, which is far larger than that of paired differences.",
    )
    return curves_picture(sheet, "error")


def ratio_axis(rows, levels):
    """The x axis with ticks at whole ratios; other ratios come from windows and thresholds in whole
    tokens."""
    whole = range(math.ceil(rows["ratio"].min()), math.floor(rows["ratio"].max()) + 1)
    ticks = {ratio: str(ratio) for ratio in whole}
    return Axis("threshold over window, T/w", ticks=ticks, levels=levels)


def size_picture(rows):
    """The picture of peaks and time averages, which should be equal."""
    frames = [
        head_points(rows, measure, ["ratio"]).rename(columns={"ratio": "x"}).assign(panel="", label=label)
        for measure, label in (("peak_kept_tokens", "peak"), ("mean_kept_tokens", "time average, measured"))
    ]
    planned = [
        (row["ratio"], mean_size(*(row["params"][n] for n in ("sinks", "window", "stride", "threshold"))))
        for _, row in rows.drop_duplicates("ratio").sort_values("ratio").iterrows()
    ]
    theory = pd.DataFrame(planned, columns=["x", "y"]).assign(
        panel="", label="time average, k + w + (a* + T)/2"
    )
    sheet = Sheet(
        title="Size against T/w",
        points=pd.concat([*frames, theory], ignore_index=True),
        x=ratio_axis(rows, {}),
        y=Axis("resident tokens"),
        note=f"{replay_note(rows)} The measured average includes the prompt's cut and an unfinished"
        " last tooth.",
        caption=f"Time averages measured between {frames[1]['y'].min():.1f} and"
        f" {frames[1]['y'].max():.1f} tokens.",
    )
    return curves_picture(sheet, "size")


def verdict(rows, rule):
    """The verdict, paired with the tried ratio nearest to the rule; `how` says when it holds."""
    ratios = sorted(set(rows["ratio"]))
    chosen = min(ratios, key=lambda ratio: abs(ratio - rule))
    against = {
        r: compare(rows[rows["ratio"] == chosen], rows[rows["ratio"] == r]) for r in ratios if r != chosen
    }
    against = {ratio: comparison for ratio, comparison in against.items() if comparison is not None}
    sure = holm([comparison.p for comparison in against.values()]) < 1 - LEVEL
    decided = {ratio: against[ratio].difference for ratio, one in zip(against, sure, strict=True) if one}
    below = [ratio for ratio, difference in decided.items() if difference > 0]
    above = [ratio for ratio, difference in decided.items() if difference < 0]
    least = not below and {ratios[0], ratios[-1]} - {chosen} <= set(above)
    outcome = FAILS if below else HOLDS if least and above else UNDECIDED
    means = rows.groupby("ratio")["rel_err_out_mean"].mean()
    return Verdict(
        claim=f"the error is lowest at the rule's T/w = {rule:.2f} (paper's figure: {PAPER_BEST:g})",
        source="BUZZ Fig. 4, Remark 2",
        how="paired with the tried ratio nearest to the rule, Holm’s correction over the others: fails if the"
        " error at another ratio is significantly lower; holds if at none and significantly higher at both"
        " ends",
        outcome=outcome,
        numbers=f"at {chosen:.2f}: {means[chosen]:.4g}; significantly lower at {listed(below)}; higher at"
        f" {listed(above)}; means {', '.join(f'{ratio:.1f}: {value:.3f}' for ratio, value in means.items())}",
    )


def listed(ratios):
    return ", ".join(f"{ratio:.2f}" for ratio in ratios) or "none"
