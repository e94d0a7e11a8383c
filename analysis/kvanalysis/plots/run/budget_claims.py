"""Error against budget, and a verdict on each claim that the configuration writes down."""

from dataclasses import replace

from ...drawing.saving import Plot
from ...stats.claims import judge_all
from ...stats.intervals import used_rows
from .error_vs_budget import draw_frame


def draw(context):
    """figure.kind budget_claims: the curves of the run; options.claims as stats.claims says."""
    frame = context.frame()
    several = frame["trace_id"].nunique() > 1
    figures = []
    for trace, rows in frame.groupby("trace_id", sort=True):
        suffix = f"_{context.config.name}" + (f"_{trace[:8]}" if several else "")
        text = caption(rows)
        figures += [replace(drawn, caption=text) for drawn in draw_frame(rows, context.out, suffix)]
    return Plot(figures, judge_all(context, frame))


def caption(rows):
    """Which mean; and the time averages of caches whose size swings, since a budget is a peak."""
    sizes = (
        used_rows(rows).groupby(["label", "budget_tokens"])[["mean_kept_tokens", "peak_kept_tokens"]].mean()
    )
    swings = sizes[sizes["peak_kept_tokens"] - sizes["mean_kept_tokens"] > 1]
    text = "rel_err_out_mean: a mean of ratios over query heads and rows."
    if swings.empty:
        return text
    each = (
        f"{label} B={budget}: {row['mean_kept_tokens']:.0f} (peak {row['peak_kept_tokens']:.0f})"
        for (label, budget), row in swings.iterrows()
    )
    return f"{text} Time averages of tokens: {', '.join(each)}."
