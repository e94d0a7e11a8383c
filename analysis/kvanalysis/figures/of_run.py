"""Every figure that a run's table allows."""

from pathlib import Path

from ..drawing.saving import save
from ..drawing.style import styled
from ..plots import pictures_of


def write_figures(frame, folder, pdf=True):
    """Writes every overview figure of `load`'s table to `folder`; returns them as `SavedFigure`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        return [save(picture, folder, pdf=pdf) for picture in pictures_of(frame)]
