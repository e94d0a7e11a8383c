"""Every figure that a run's table allows."""

from pathlib import Path

from ..drawing.style import styled
from ..plots import OVERVIEW
from ..stats.intervals import by_trace


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
