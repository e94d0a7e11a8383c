"""From figure configurations to pictures, each with a figure.json that a page can be made of."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ..data.whole_file import write_whole
from ..drawing.style import styled
from ..errors import FigureError
from ..plots import renderer, settler
from .alone import alone
from .config import MARKS, NEEDED, read_figure_config
from .context import Context
from .steps import run_steps

DESCRIBED = "figure.json"


def figure_configs(path):
    """The configurations of a file, or of all *.yaml of a folder, sorted by name; raises FigureError."""
    path = Path(path)
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise FigureError(f"{path}: holds no figure configuration (*.yaml)")
    return [read_figure_config(file) for file in files]


def make_figure(config, out, wishes):
    """Runs the steps of `config` into `out` and draws; returns the Plot. Raises FigureError, ResultsError."""
    with alone(out):
        return _make(config, out, wishes)


def _make(config, out, wishes):
    context = Context(config, out, list(wishes.traces) or config.traces)
    # Stands for a folder that is whole: until the new pictures do, no page may show old verdicts beside them.
    (out / DESCRIBED).unlink(missing_ok=True)
    settled = settler(config.kind)
    run_steps(config, out, wishes, settled and partial(settled, context))
    with styled():
        plot = renderer(config.kind)(context)
    made = {"traces": [Path(trace).name for trace in context.traces]}
    made |= {"overrides": [*wishes.overrides], "quick": wishes.quick}
    described = _described(config, plot, out) | made
    write_whole(out / DESCRIBED, json.dumps(described, indent=2))
    return plot


def _described(config, plot, out):
    said = {key: getattr(config, key) for key in ("name", *NEEDED)}
    figures = [{key: _relative(value, out) for key, value in asdict(drawn).items()} for drawn in plot.figures]
    return said | {
        "mark_means": MARKS[config.mark],
        "config": config.path.name,
        "figures": figures,
        "verdicts": [asdict(verdict) for verdict in plot.verdicts],
    }


def _relative(value, out):
    return str(value.relative_to(out)) if isinstance(value, Path) else value
