"""Contexts for renderers without the program: results, kept sets and cluster tables written by hand."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pandas as pd
from kvanalysis.drawing import saving
from kvanalysis.drawing.style import styled
from kvanalysis.figures.config import FigureConfig, Step
from kvanalysis.figures.context import Context
from kvanalysis.plots import renderer
from PIL import Image
from test_kvanalysis_fake import COLUMNS, TRACE, write_results


def make_context(folder, kind="budget_claims", options=None, steps=("run",)):
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
    return Context(config, folder, [])


def draw(folder, kind, rows=None, options=None, steps=None, more=(), pictures=False):
    """The Plot of `kind` from fake rows ({step: rows}, or the rows of `run`).

    `more`: columns beyond the contract. Without `pictures` nothing is rendered, which is most of the time."""
    given = rows if isinstance(rows, dict) else {"run": rows} if rows else {}
    for step, its_rows in given.items():
        write_results(folder / step, its_rows, columns=(*COLUMNS, "given", *more))
    context = make_context(folder, kind, options, steps or tuple(given))
    with styled(), nullcontext() if pictures else mock.patch.object(saving, "save", _touch):
        plot = renderer(kind)(context)
    for figure in plot.figures:
        paths = [figure.png, figure.narrow, figure.png.with_suffix(".pdf")]
        assert all(path.stat().st_size > 3000 for path in paths if pictures), figure.title
        assert len(pd.read_csv(figure.csv)), figure.title
    return plot


def _touch(_figure, stem):
    Image.new("RGB", (1, 1)).save(f"{stem}.png")
    return Path(f"{stem}.png")


def write_lists(path, cells, name="kept"):
    """kept.h5 with {key: [tokens after the prompt, after each step, ...]}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "a") as file:
        for key, lists in cells.items():
            file[f"{key}/{name}_flat"] = np.concatenate(lists).astype(np.int32)
            file[f"{key}/{name}_off"] = np.cumsum([0, *map(len, lists)])


def write_cluster(folder, lines):
    """cluster.csv of (layer, kv_head, measure, param, x, value)."""
    table = pd.DataFrame(lines, columns=["layer", "kv_head", "measure", "param", "x", "value"])
    table = table.assign(trace_id=TRACE, model="a model", prompt="p0", view="")
    order = ["trace_id", "model", "prompt", "layer", "kv_head", "measure", "view", "param", "x", "value"]
    table[order].to_csv(folder / "cluster.csv", index=False)


def scores(layer, kv_head, values):
    return [(layer, kv_head, "accumulated", "", i, value) for i, value in enumerate(values)]
