"""A renderer's context from rows that tests make up, without a run."""

from pathlib import Path
from unittest.mock import patch

import yaml
from kvanalysis.drawing.style import styled
from kvanalysis.figures.config import read_figure_config
from kvanalysis.figures.context import Context
from kvanalysis.plots import renderer
from test_kvanalysis_fake import write_results


def fake_context(folder, kind, steps, traces=(), **options):
    """The Context of a configuration of `kind`. `steps`: {name of a run step: rows as `fake_row` makes them}.

    Columns beyond the contract are those of the first row of a step.
    """
    config = folder / f"{kind}.yaml"
    named = [{"run": None, "as": name} for name in steps]
    figure = dict.fromkeys(("paper", "number", "title", "expect"), "made up")
    figure |= {"kind": kind, "mark": "P", "steps": named, "options": options}
    config.write_text(yaml.safe_dump({"name": kind, "figure": figure}))
    for name, rows in steps.items():
        write_results(folder / "out" / name, rows, columns=list(rows[0]))
    return Context(read_figure_config(config), folder / "out", list(traces))


def draw(context):
    """The Plot of a context; every file that it names must be there."""
    with styled():
        plot = renderer(context.config.kind)(context)
    for drawn in plot.figures:
        for path in (drawn.png, drawn.narrow, drawn.csv, drawn.png.with_suffix(".pdf")):
            assert path.stat().st_size > 0, path
    return plot


def sketch(context):
    """The same without pictures on disk, in a third of the time: for tests of numbers and words."""
    with styled(), patch("kvanalysis.drawing.saving.save", _laid_out):
        return renderer(context.config.kind)(context)


def _laid_out(figure, stem):
    figure.draw_without_rendering()
    return Path(f"{stem}.png")
