"""A table of mean errors: named rows by budget, coloured by the error, every cell with its number."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

from ...drawing.saving import Picture
from ...drawing.style import finish, new_figure
from ...stats.claims import claims_judged, select
from ...stats.intervals import head_points
from ...stats.words import replay_note

MAP = "cividis"
ROW_HEIGHT = 0.21  # inches
NO_BUDGET = 0  # comes last, as "none"
DARK = 0.45  # value of the colour map below which numbers are white


def data(run):
    """(means over heads, the rows behind them) for options.rows: a list of {name, select}, selected as in
    stats.claims."""
    return table_of(run.option("rows"), run.frame())


def draw(run, found):
    cells, used = found
    said = run.option("note", " ")
    note = f"{replay_note(used)} Mean relative output error (mean of ratios) over heads. {said}".strip()
    return [Picture("Error by method and budget", cells, partial(_figure, cells, note), caption(cells))]


def claims(run, _found):
    return claims_judged(run, run.frame())


def table_of(wanted, frame):
    """(points with columns name, budget_tokens, y, low, high, kept, bytes; the rows that were used)."""
    parts, used = [], []
    for row in wanted:
        rows = select(frame, row["select"])
        rows = rows.assign(budget_tokens=rows["budget_tokens"].fillna(NO_BUDGET))
        used.append(rows)
        points = head_points(rows, "rel_err_out_mean", ["budget_tokens"])
        sizes = rows.groupby("budget_tokens")[["peak_kept_tokens", "total_bytes"]].mean()
        found = points.join(sizes, on="budget_tokens") if len(points) else pd.DataFrame({"y": [np.nan]})
        parts.append(found.assign(name=row["name"]))
    return pd.concat(parts, ignore_index=True), pd.concat(used)


def caption(cells):
    missing = sorted(set(cells.loc[cells["y"].isna(), "name"]))
    text = "Lower is better. total_bytes of a kv head are in the CSV."
    return text + (f" Without a result: {', '.join(missing)}." if missing else "")


def _figure(cells, note, width):
    names = list(dict.fromkeys(cells["name"]))
    grid = cells.dropna(subset=["budget_tokens"]).pivot_table(
        index="name", columns="budget_tokens", values="y"
    )
    grid = grid.reindex(names)[sorted(grid.columns, key=lambda budget: (budget == NO_BUDGET, budget))]
    figure = new_figure(width)
    axes = figure.subplots()
    values = grid.to_numpy(dtype=float)
    finite = values[np.isfinite(values) & (values > 0)]
    scale = LogNorm(finite.min(), max(finite.max(), finite.min() * 1.01))
    shown = np.ma.masked_invalid(np.where(values == 0, finite.min(), values))
    axes.imshow(shown, cmap=MAP, norm=scale, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        colour = "white" if np.isfinite(value) and value > 0 and scale(value) < DARK else "black"
        text = f"{value:#.2g}" if np.isfinite(value) else "–"
        axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=6.5)
    axes.set_xticks(
        range(len(grid.columns)),
        ["none" if budget == NO_BUDGET else f"{budget:g}" for budget in grid.columns],
    )
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("budget [tokens per kv head]")
    axes.grid(False)
    axes.tick_params(length=0)
    finish(figure, [], [], note, ROW_HEIGHT * len(names))
    return figure
