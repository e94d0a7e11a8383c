"""Every figure that a run's table allows."""

from pathlib import Path

from .plots import OVERVIEW
from .plotstyle import styled


def write_figures(frame, folder):
    """Writes every overview figure of `load`'s table to `folder`; returns them as `Drawn`, trace by trace.

    Those of one trace stand in the order of OVERVIEW: what matters most comes first.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, rows in by_trace(frame):
        with styled():
            for plot in OVERVIEW:
                written += plot.draw_frame(rows, folder, suffix)
    return written


def by_trace(frame):
    """(suffix of file names, rows) of every trace; the suffix is empty if there is only one."""
    several = frame["trace_id"].nunique() > 1
    for trace_id, rows in frame.groupby("trace_id", sort=True):
        yield (f"_{trace_id[:8]}" if several else ""), rows
