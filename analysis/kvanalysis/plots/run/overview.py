"""figure.kind overview: overview plots from the runs of one configuration, without a verdict.

options:
  plots: [error_vs_bytes, rank_table]   # all of plots.OVERVIEW if absent
  runs: {run: "", q64: ", recent B/4"}  # run steps to join, and the text added to their labels
"""

import pandas as pd

from ...errors import FigureError
from ...plots import OVERVIEW, pictures_of
from . import error_vs_budget


def data(run):
    """The rows of all runs together; a cell that two runs share counts once."""
    frames = []
    for step, text in run.option("runs", {"run": ""}).items():
        frame = run.frame(step)
        frames.append(frame.assign(label=frame["label"] + text))
    together = pd.concat(frames, ignore_index=True).drop_duplicates(["key", "label"], ignore_index=True)
    folders = [folder for frame in frames for folder in frame.attrs["folders"]]
    together.attrs = frames[0].attrs | {"folders": folders}
    return together


def draw(run, frame):
    return list(pictures_of(frame, _plots(run)))


def _plots(run):
    known = {plot.__name__.rpartition(".")[2]: plot for plot in (*OVERVIEW, error_vs_budget)}
    names = run.option("plots", [name for name, plot in known.items() if plot in OVERVIEW])
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FigureError(
            f"{run.config.path}: figure.options.plots: no overview plot {unknown[0]}; plots:"
            f" {', '.join(known)}"
        )
    return [known[name] for name in names]
