"""Every figure that a run's table allows."""

from pathlib import Path

from .plots import OVERVIEW
from .plotstyle import styled


def write_figures(frame, folder):
    """Writes every overview figure of `load`'s table to `folder`; returns them as `Drawn`, trace by trace."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    several = frame["trace_id"].nunique() > 1
    for trace_id, rows in frame.groupby("trace_id", sort=True):
        suffix = f"_{trace_id[:8]}" if several else ""
        with styled():
            for plot in OVERVIEW:
                written += plot.draw_frame(rows, folder, suffix)
    return written
