"""figure.kind overview: any of the overview plots from the runs of one configuration, without a verdict.

options:
  plots: [error_vs_bytes, rank_table]   # modules of this package with draw_frame; all of OVERVIEW if absent
  runs: {run: "", q64: ", recent B/4"}  # run steps taken together, and what is added to their labels
"""

import pandas as pd

from ...drawing.saving import Plot
from ...errors import FigureError
from ...plots import OVERVIEW
from ...stats.intervals import by_trace


def draw(context):
    plots, frame = _plots(context), _frame(context)
    figures = []
    for suffix, rows in by_trace(frame):
        for plot in plots:
            figures += plot.draw_frame(rows, context.out, f"_{context.config.name}{suffix}")
    return Plot(figures)


def _plots(context):
    known = {plot.__name__.rpartition(".")[2]: plot for plot in OVERVIEW}
    names = context.option("plots", list(known))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FigureError(
            f"{context.config.path}: figure.options.plots: no overview plot {unknown[0]}; there are"
            f" {', '.join(known)}"
        )
    return [known[name] for name in names]


def _frame(context):
    """The rows of all runs together; a cell that two runs share counts once."""
    frames = []
    for step, text in context.option("runs", {"run": ""}).items():
        frame = context.frame(step)
        frames.append(frame.assign(label=frame["label"] + text))
    together = pd.concat(frames, ignore_index=True).drop_duplicates(["key", "label"], ignore_index=True)
    folders = [folder for frame in frames for folder in frame.attrs["folders"]]
    together.attrs = frames[0].attrs | {"folders": folders}
    return together
