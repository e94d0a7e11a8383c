"""H2O Fig. 3: the algorithm on prescribed scores, step by step."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from ...drawing.saving import Picture
from ...drawing.style import finish, new_figure
from ...errors import ResultsError
from ...stats.intervals import used_rows
from ...stats.verdict import FAILS, HOLDS, Verdict

MAP, DARK = "cividis", 0.45
GONE = "#DDDDDD"
CELL_HEIGHT = 0.24  # inches


def data(run):
    """Every step and token of each label, from a run on the prescribed rows of a step `toy`."""
    [rows] = [step.argument for step in run.config.steps if step.command == "toy"]
    return pd.concat([steps_of(run, cell, rows) for _, cell in _cells(run)], ignore_index=True)


def draw(_run, table):
    shown = table[table["label"] == table["label"].iloc[0]]
    title = "Prescribed scores, step by step"
    return [Picture(title, table, partial(_figure, shown), caption(shown))]


def claims(run, _table):
    """Verdict that options.token is evicted after step options.after (both from 1)."""
    token, after = run.option("token"), run.option("after")
    return [verdict(run, cell, token, after) for _, cell in _cells(run)]


def _cells(run):
    frame = used_rows(run.frame())
    if frame.empty:
        raise ResultsError("no cell of the toy trace has a result")
    return list(frame.iterrows())


def steps_of(run, cell, rows):
    """One line per step and token: its probability (in decode steps: the engine's) and whether it is held
    afterwards."""
    first = int(cell["n_prefill"])
    kept = run.arrays("kept").lists(cell["key"])
    out = run.arrays("outputs")[cell["key"]]["out"][0]
    lines = []
    for t, row in enumerate(rows):
        values = row if t < first else out[t - first]
        held = kept[t - first + 1] if t >= first else np.arange(t + 1)
        seen = np.arange(t + 1) if t <= first else np.append(kept[t - first], t)
        lines += [
            {"label": cell["label"], "step": t + 1, "token": i + 1, "probability": float(values[i])}
            | {"attended": bool(i in seen), "held_after": bool(i in held)}
            for i in range(t + 1)
        ]
    return pd.DataFrame(lines)


def _figure(table, width):
    n = int(table["step"].max())
    figure = new_figure(width)
    axes = figure.subplots()
    values = np.full((n, n), np.nan)
    for _, cell in table[table["attended"]].iterrows():
        values[cell["step"] - 1, cell["token"] - 1] = cell["probability"]
    axes.imshow(np.ma.masked_invalid(values), cmap=MAP, vmin=0, vmax=1, aspect="auto")
    for _, cell in table.iterrows():
        text(axes, cell)
    axes.set_xticks(range(n), [str(i + 1) for i in range(n)])
    axes.set_yticks(range(n), [str(i + 1) for i in range(n)])
    axes.set(xlabel="token", ylabel="step")
    axes.grid(False)
    axes.tick_params(length=0)
    note = "Attention of each step to held tokens and the newest. Cross: evicted now. Grey: before."
    finish(figure, [], [], f"{table['label'].iloc[0]}. {note}", CELL_HEIGHT * n)
    return figure


def text(axes, cell):
    """Writes a cell: an evicted token is grey, a token that is evicted after this step has a cross."""
    x, y = cell["token"] - 1, cell["step"] - 1
    if not cell["attended"]:
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=GONE, edgecolor="none"))
        return
    colour = "white" if cell["probability"] < DARK else "black"
    end = "" if cell["held_after"] else " ✕"
    axes.text(x, y, f"{cell['probability']:.2f}{end}", ha="center", va="center", fontsize=6.5, color=colour)


def caption(table):
    left = table[table["attended"] & ~table["held_after"]]
    steps = ", ".join(f"token {row['token']} after step {row['step']}" for _, row in left.iterrows())
    return f"Evicted: {steps}." if steps else "Nothing is evicted."


def verdict(run, cell, token, after):
    kept = run.arrays("kept").lists(cell["key"])
    first = int(cell["n_prefill"])
    before, then = (set((kept[after - first - 1 + i] + 1).tolist()) for i in (0, 1))
    left = sorted((before | {after}) - then)
    return Verdict(
        claim=f"token {token} is the one evicted after step {after} ({cell['label']})",
        source="H2O Fig. 3",
        how="exact kept sets of the replay on the prescribed scores",
        outcome=HOLDS if left == [token] else FAILS,
        numbers=f"held before {sorted(before)} and the new {after}; evicted {left}; kept {sorted(then)}",
    )
