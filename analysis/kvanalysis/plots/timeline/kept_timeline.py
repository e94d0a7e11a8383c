"""The tokens that one kv head holds at each step, and the attention of later queries to those it evicted.

Options of a configuration: layer (default: the middle layer of the run), kv_head (default: the first), listed
(number of evictions that are named, default 12). The run must save `kept`.
"""

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...data.exact_head import group_attention
from ...drawing.saving import Picture, in_grid
from ...errors import FigureError
from ...stats.intervals import used_rows
from .evictions_figure import eviction_summary, evictions_picture
from .residence import evictions, kept_timeline

LISTED = 12
MAP = colormaps["viridis_r"]
LEAST_MASS = 0.01  # rows of attention; the colour scale begins here
MOST_QUANTILE = 0.995
TEXT_WIDTH = 14  # characters of a token's text
RED = "#D55E00"
NEAR, NUMBER_LINE = 0.05, 6  # share of an axis, points: numbers of nearby marks stand above each other
NUMBERED, MARK_TEXT = 3, {"fontsize": 6, "color": RED, "fontweight": "bold"}


def data(run):
    """(a row for each token of one head and label, one cell for each label)."""
    cells, recorded = _one_head(run), run.recorded()
    prompt, layer, head, n_prefill, n = _place(cells)
    attention = group_attention(recorded, prompt, layer, head, n_prefill, n)
    kept, texts = run.arrays("kept"), recorded.token_texts(prompt)[:n]
    tables = [
        kept_timeline(_lists(kept, cell, run), attention, n_prefill).assign(
            label=cell["label"],
            text=[_shown(text) for text in texts],
            engine_missing=1 - cell["kept_mass_mean"],
        )
        for _, cell in cells.iterrows()
    ]
    return pd.concat(tables), cells


def draw(run, found):
    table, cells = found
    prompt, layer, head, n_prefill, n = _place(cells)
    where = f"layer {layer}, kv head {head}, prompt {prompt}, budget {cells['budget_tokens'].iloc[0]}"
    listed = int(run.option("listed", LISTED))
    return [_residence(table, where, n_prefill, n, listed), evictions_picture(table, where, listed)]


def _place(cells):
    """(prompt, layer, kv head, tokens of the prompt, tokens) for the one head."""
    prompt, *numbers = cells[["prompt", "layer", "kv_head", "n_prefill", "n_tokens"]].iloc[0]
    return prompt, *map(int, numbers)


def _one_head(run):
    """One finished cell per label: the smallest budget, first seed, at the wanted layer and kv head."""
    rows = used_rows(run.frame())
    rows = rows[rows["budget_tokens"].notna() & (rows["n_prefill"] < rows["n_tokens"])]
    if rows.empty:
        raise FigureError(f"{run.config.path}: no finished cell with a budget: nothing is ever evicted")
    layers = sorted(rows["layer"].unique())
    layer = run.option("layer", int(layers[len(layers) // 2]))
    head = run.option("kv_head", int(rows["kv_head"].min()))
    wanted = rows[(rows["layer"] == layer) & (rows["kv_head"] == head)]
    if wanted.empty:
        known = ", ".join(str(x) for x in layers)
        raise FigureError(
            f"{run.config.path}: figure.options: layer {layer}, kv_head {head} was not run;"
            f" layers of the run: {known}"
        )
    order = ["trace_id", "prompt", "budget_tokens", "seed"]
    first = wanted.sort_values(order).iloc[0]
    same = wanted[(wanted[order[:3]] == first[order[:3]]).all(axis=1)]
    return same.sort_values(["label", "seed"]).drop_duplicates("label")


def _lists(kept, cell, run):
    try:
        return kept.lists(cell["key"])
    except KeyError as problem:
        raise FigureError(
            f"{run.config.path}: {cell['label']} keeps no tokens over time (a query-time method)"
        ) from problem


def _shown(text):
    """A token's text on one line, short enough for a label."""
    text = (
        text.replace("\n", "\\n").replace("$", "\\$").strip(" ")
        if text.strip(" ")
        else repr(text)
        if text
        else ""
    )
    return text[:TEXT_WIDTH]


def _residence(table, where, n_prefill, n, listed):
    norm = mass_norm(table)
    panels = [
        timeline_panel(rows, label, norm, n_prefill, n, listed)
        for label, rows in table.groupby("label", sort=True)
    ]
    masses = [*(mass for mass in 10.0 ** np.arange(-2, 4) if mass < norm.vmax), norm.vmax]
    names = [f"{mass:.2g}" for mass in masses]
    ends = [f"at most {names[0]}", *names[1:-1], f"at least {names[-1]} rows"]
    dot = Line2D([], [], linestyle="", marker="o", markersize=3, color=RED)
    legend = (
        [
            *(Patch(color=MAP(norm(mass))) for mass in masses),
            Patch(facecolor="white", edgecolor="#999999"),
            dot,
        ],
        [*ends, "not resident", f"evicted, among the {listed} with most later attention"],
    )
    note = (
        f"{where}, tokens {n_prefill} to {n - 1} one by one after a prompt of {n_prefill}. Colour: exact"
        " attention to the token from all queries after the prompt, mean over the group's query heads, in"
        " rows (1: the whole attention of one query). Dots: evictions that the next figure names."
    )
    drawn = in_grid(panels, legend, note, on_page=2, height=2.2)
    title = "The tokens that one head holds, step by step"
    return Picture(title, table, drawn, _caption(table, n_prefill, n))


def mass_norm(table):
    """The colour scale of MAP for the `wanted_mass` of `table`.

    A few sinks get hundreds of times the attention of all others: the scale ends where they begin."""
    most = table["wanted_mass"].quantile(MOST_QUANTILE)
    return LogNorm(LEAST_MASS, max(most, 10 * LEAST_MASS), clip=True)


def timeline_panel(rows, label, norm, n_prefill, n, listed, numbered=NUMBERED):
    """A function of an axes that draws the cache contents in `rows` (residence.kept_timeline), step by
    step, and marks the `listed` worst evictions, the first `numbered` of them with their numbers."""

    def panel(axes):
        steps = np.arange(n_prefill - 1, n)
        until = rows["evicted_at"].fillna(n).to_numpy()
        held = (steps >= rows["enters"].to_numpy()[:, None]) & (steps < until[:, None])
        mass = np.broadcast_to(rows["wanted_mass"].clip(lower=LEAST_MASS).to_numpy()[:, None], held.shape)
        image = np.where(held[..., None], MAP(norm(mass)), 1.0)
        axes.imshow(
            image,
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(n_prefill - 1.5, n - 0.5, -0.5, n - 0.5),
        )
        worst = evictions(rows).head(listed)
        axes.plot(worst["evicted_at"], worst["position"], "o", color=RED, markersize=2)
        marked = []
        for number, (_, token) in enumerate(worst.head(numbered).iterrows(), 1):
            at = np.array([token["evicted_at"], token["position"]])
            near = sum((np.abs(at - other) < (NEAR * (n - n_prefill), NEAR * n)).all() for other in marked)
            marked.append(at)
            above = {"xytext": (3, NUMBER_LINE * near), "textcoords": "offset points", "va": "center"}
            axes.annotate(str(number), at, **above, **MARK_TEXT)
        axes.grid(visible=False)
        axes.set_title(label)
        axes.set(xlabel="step: the token just read", ylabel="position of the token")

    return panel


def _caption(table, n_prefill, n):
    said = []
    for label, rows in table.groupby("label", sort=True):
        gone = rows["evicted_at"].notna().sum()
        share = rows["later_mass"].sum() / (n - n_prefill)
        said.append(
            f"{label}: {gone} of {len(rows)} tokens evicted, {eviction_summary(rows)}, {share:.1%} of all"
            f" attention (engine: 1 - kept_mass_mean = {rows['engine_missing'].iloc[0]:.1%})"
        )
    return "; ".join(said) + "."
