"""Turns a run or figure configurations into pictures, with the files that a page needs for them."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from kvbase.files import write_atomic

from ..drawing.saving import FigureResult, save
from ..drawing.style import styled
from ..errors import FigureError
from ..plots import module_of, pictures_of
from .alone import alone
from .config import MARKS, NEEDED, read_figure_config
from .context import Context
from .steps import run_steps

DESCRIBED = "figure.json"


def figure_configs(path):
    """The configurations in a file, or in all *.yaml of a folder, sorted by name; raises FigureError."""
    path = Path(path)
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise FigureError(f"{path}: holds no figure configuration (*.yaml)")
    return [read_figure_config(file) for file in files]


def make_figure(config, out, options):
    """Runs the steps of `config` into `out` and draws; returns the FigureResult. Raises FigureError,
    ResultsError."""
    with alone(out):
        return _make(config, out, options)


def _make(config, out, options):
    context = Context(config, out, list(options.traces) or config.traces, options.quick)
    # This file marks a complete folder: until new pictures are there, no page may show old verdicts for them.
    (out / DESCRIBED).unlink(missing_ok=True)
    kind = module_of(config.kind)
    derived = getattr(kind, "derived_overrides", None)
    run_steps(config, out, options, derived and partial(derived, context))
    result = result_of(kind, context)
    made = {"traces": [Path(trace).name for trace in context.traces]}
    made |= {"overrides": [*options.overrides], "quick": options.quick}
    described = _described(config, result, out) | made
    write_atomic(out / DESCRIBED, json.dumps(described, indent=2))
    return result


def _described(config, result, out):
    said = {key: getattr(config, key) for key in ("name", *NEEDED)}
    figures = [
        {key: _relative(value, out) for key, value in asdict(drawn).items()} for drawn in result.figures
    ]
    return said | {
        "mark_means": MARKS[config.mark],
        "config": config.path.name,
        "figures": figures,
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
    }


def _relative(value, out):
    return str(value.relative_to(out)) if isinstance(value, Path) else value


def result_of(kind, context):
    """The FigureResult of a module in `plots`; its pictures are saved beside the steps."""
    table = kind.data(context)
    with styled():
        figures = [save(picture, context.out, context.config.name) for picture in kind.draw(context, table)]
    verdicts = kind.claims(context, table) if hasattr(kind, "claims") else []
    return FigureResult(figures, verdicts, table)


def write_figures(frame, folder, pdf=True, told=None, summary=None, losses=None):
    """Writes every overview figure of `load`'s table to `folder`; returns them as `SavedFigure`.

    `told(number, total, name)` is a callback that runs before each kind of figure is drawn. `summary` and
    `losses`: the table's summary and predicted losses, if already known."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        found = pictures_of(frame, told=told, summary=summary, losses=losses)
        return [save(picture, folder, pdf=pdf) for picture in found]
