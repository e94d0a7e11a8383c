"""Error against budget, and a verdict on each claim that the configuration writes down."""

from ..claims import judge_all
from ..drawn import Plot
from .error_vs_budget import draw_frame


def draw(context):
    """figure.kind budget_claims: the curves of the run; options.claims as kvanalysis.claims says."""
    frame = context.frame()
    several = frame["trace_id"].nunique() > 1
    figures = []
    for trace, rows in frame.groupby("trace_id", sort=True):
        suffix = f"_{context.config.name}" + (f"_{trace[:8]}" if several else "")
        figures += draw_frame(rows, context.out, suffix)
    return Plot(figures, judge_all(context, frame))
