"""Makes figures from rows, kept sets and tables that a test chooses, without the program and without picture
files."""

import io
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from kvanalysis.drawing.saving import Picture
from kvanalysis.drawing.style import styled
from kvanalysis.figures.config import FigureConfig, Step, read_figure_config
from kvanalysis.figures.context import Context
from kvanalysis.plots import module_of
from kvanalysis.stats.verdict import Verdict
from legible import require_legible
from test_kvanalysis_fake import COLUMNS, TRACE, write_results

CONFIGS = Path(__file__).parents[2] / "configs/figures"


@dataclass
class Sketch:
    """The figures and verdicts of a run, before anything is written to disk."""

    figures: list[Picture]
    verdicts: list[Verdict]

    def table(self, number=0, more=""):
        """The numbers of a picture, or of its table `more`, as read back from its file."""
        picture = self.figures[number]
        table = picture.more[more] if more else picture.table
        return pd.read_csv(io.StringIO(table.to_csv(index=False, float_format="%.9g")))

    def outcomes(self):
        return [verdict.outcome for verdict in self.verdicts]


def sketch(context, painted=False):
    """Returns the Sketch of a Context; `painted` also draws every picture at both widths."""
    kind = module_of(context.config.kind)
    table = kind.data(context)
    with styled():
        pictures = kind.draw(context, table)
        for picture in pictures:
            assert len(picture.table), picture.title
            for _, width in picture.widths if painted else ():
                require_legible(picture.draw(width), picture.title)
    return Sketch(pictures, kind.claims(context, table) if hasattr(kind, "claims") else [])


def make_context(folder, kind="budget_claims", options=None, steps=("run",), traces=()):
    """Returns the Context of an invented configuration; `steps`: Steps, or names of run steps."""
    config = FigureConfig(
        path=Path("fake.yaml"),
        name="fake",
        kind=kind,
        paper="a paper",
        number="Fig. 0",
        mark="R",
        title="a title",
        expect="a claim",
        traces=[],
        steps=[step if isinstance(step, Step) else Step("run", step, {}) for step in steps],
        options=options or {},
    )
    return Context(config, folder, list(traces))


def config_context(name, out, traces=None, **options):
    """Returns the Context of configs/figures/NAME.yaml with additional `options`."""
    config = read_figure_config(CONFIGS / f"{name}.yaml")
    return Context(replace(config, options=config.options | options), out, traces or config.traces)


def fake_context(folder, kind, steps, traces=(), **options):
    """Returns the Context of a `kind` configuration. `steps`: {name of a run step: rows made by `fake_row`}.

    The first row of a step determines its columns beyond the contract.
    """
    for name, rows in steps.items():
        write_results(folder / "out" / name, rows, columns=list(rows[0]))
    return make_context(folder / "out", kind, options, tuple(steps), traces)


def draw(folder, kind, rows=None, options=None, steps=None, more=(), painted=False):
    """Returns the Sketch of `kind` from fake rows ({step: rows}, or the rows of `run`); `more`: columns
    beyond the contract."""
    given = rows if isinstance(rows, dict) else {"run": rows} if rows else {}
    for step, its_rows in given.items():
        write_results(folder / step, its_rows, columns=(*COLUMNS, "given", *more))
    return sketch(make_context(folder, kind, options, steps or tuple(given)), painted)


def write_lists(path, cells, name="kept"):
    """Writes kept.h5 from {key: [tokens after the prompt, after each step, ...]}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "a") as file:
        for key, lists in cells.items():
            file[f"{key}/{name}_flat"] = np.concatenate(lists).astype(np.int32)
            file[f"{key}/{name}_off"] = np.cumsum([0, *map(len, lists)])


def write_cluster(folder, lines):
    """Writes cluster.csv from rows (layer, kv_head, measure, param, x, value)."""
    table = pd.DataFrame(lines, columns=["layer", "kv_head", "measure", "param", "x", "value"])
    table = table.assign(trace_id=TRACE, model="a model", prompt="p0", view="")
    order = ["trace_id", "model", "prompt", "layer", "kv_head", "measure", "view", "param", "x", "value"]
    table[order].to_csv(folder / "cluster.csv", index=False)


def scores(layer, kv_head, values):
    return [(layer, kv_head, "accumulated", "", i, value) for i, value in enumerate(values)]
