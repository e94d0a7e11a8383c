"""Which tokens one kv head holds at which step, and what later queries put on those it evicted.

Options of a configuration: layer (default: the middle one that was run), kv_head (default: the first), listed
(evictions that are named, 12). The run must save `kept`.
"""

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...drawing.saving import Drawn, Plot, draw_grid, write_csv
from ...errors import FigureError
from ...stats.intervals import used_rows
from .evictions_figure import draw_regrets, eviction_summary
from .exact_head import group_attention
from .residence import evictions, kept_timeline

LISTED = 12
MAP = colormaps["viridis_r"]
LEAST_MASS = 0.01  # rows of attention; the colour scale begins here
MOST_QUANTILE = 0.995
TEXT_WIDTH = 14  # characters of a token's text
RED = "#D55E00"
NUMBERED, MARK_TEXT = 3, {"fontsize": 6, "color": RED, "fontweight": "bold"}


def draw(context):
    """figure.kind kept_timeline."""
    cells, recorded = _one_head(context), context.recorded()
    first = cells.iloc[0]
    prompt, layer, head, P, n = (
        first[name] for name in ("prompt", "layer", "kv_head", "n_prefill", "n_tokens")
    )
    attention = group_attention(recorded, prompt, int(layer), int(head), int(P), int(n))
    kept, listed = context.arrays("kept"), int(context.option("listed", LISTED))
    texts = recorded.token_texts(prompt)[: int(n)]
    tables = [
        kept_timeline(_lists(kept, cell, context), attention, int(P)).assign(
            label=cell["label"],
            text=[_shown(text) for text in texts],
            engine_missing=1 - cell["kept_mass_mean"],
        )
        for _, cell in cells.iterrows()
    ]
    table = pd.concat(tables)
    where = f"layer {layer}, kv head {head}, prompt {prompt}, budget {first['budget_tokens']}"
    csv = write_csv(table, context.stem().with_suffix(".csv"))
    figures = [_residence(context, table, where, csv, int(P), int(n), listed)]
    figures.append(draw_regrets(table, where, listed, context.stem("_evicted")))
    return Plot(figures)


def _one_head(context):
    """One finished cell per label: the smallest budget, first seed, of the wanted layer and kv head."""
    rows = used_rows(context.frame())
    rows = rows[rows["budget_tokens"].notna() & (rows["n_prefill"] < rows["n_tokens"])]
    if rows.empty:
        raise FigureError(f"{context.config.path}: no finished cell with a budget: nothing is ever evicted")
    layers = sorted(rows["layer"].unique())
    layer = context.option("layer", int(layers[len(layers) // 2]))
    head = context.option("kv_head", int(rows["kv_head"].min()))
    wanted = rows[(rows["layer"] == layer) & (rows["kv_head"] == head)]
    if wanted.empty:
        known = ", ".join(str(x) for x in layers)
        raise FigureError(
            f"{context.config.path}: figure.options: layer {layer}, kv_head {head} was not run;"
            f" layers that were: {known}"
        )
    order = ["trace_id", "prompt", "budget_tokens", "seed"]
    first = wanted.sort_values(order).iloc[0]
    same = wanted[(wanted[order[:3]] == first[order[:3]]).all(axis=1)]
    return same.sort_values(["label", "seed"]).drop_duplicates("label")


def _lists(kept, cell, context):
    try:
        return kept.lists(cell["key"])
    except KeyError as problem:
        raise FigureError(
            f"{context.config.path}: {cell['label']} keeps no tokens over time (a query-time method)"
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


def _residence(context, table, where, csv, P, n, listed):
    # A few sinks get hundreds of times what all others do: the scale ends where they begin.
    norm = LogNorm(LEAST_MASS, max(table["wanted_mass"].quantile(MOST_QUANTILE), 10 * LEAST_MASS), clip=True)
    panels = [
        _timeline_panel(rows, label, norm, P, n, listed) for label, rows in table.groupby("label", sort=True)
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
        [*ends, "not resident", f"evicted, among the {listed} most wanted later"],
    )
    note = (
        f"{where}, tokens {P} to {n - 1} one by one after a prompt of {P}. Colour: attention that all"
        " queries from the prompt's end on put on the token, exact, mean over the group's query heads, in"
        " rows (1: the whole attention of one query). Dots: evictions that the next figure names."
    )
    page, column = draw_grid(context.stem(), panels, legend, note, on_page=2, height=2.2)
    return Drawn("What one head holds, step by step", page, csv, narrow=column, caption=_caption(table, P, n))


def _timeline_panel(rows, label, norm, P, n, listed):
    def panel(axes):
        steps = np.arange(P - 1, n)
        until = rows["evicted_at"].fillna(n).to_numpy()
        held = (steps >= rows["enters"].to_numpy()[:, None]) & (steps < until[:, None])
        mass = np.broadcast_to(rows["wanted_mass"].clip(lower=LEAST_MASS).to_numpy()[:, None], held.shape)
        image = np.where(held[..., None], MAP(norm(mass)), 1.0)
        axes.imshow(
            image,
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(P - 1.5, n - 0.5, -0.5, n - 0.5),
        )
        worst = evictions(rows).head(listed)
        axes.plot(worst["evicted_at"], worst["position"], "o", color=RED, markersize=2)
        for number, (_, token) in enumerate(worst.head(NUMBERED).iterrows(), 1):
            at = token["evicted_at"], token["position"]
            axes.annotate(str(number), at, (3, 0), textcoords="offset points", va="center", **MARK_TEXT)
        axes.grid(visible=False)
        axes.set_title(label, loc="left", pad=3)
        axes.set(xlabel="step: token that has just been read", ylabel="position of the token")

    return panel


def _caption(table, P, n):
    said = []
    for label, rows in table.groupby("label", sort=True):
        gone = rows["evicted_at"].notna().sum()
        share = rows["later_mass"].sum() / (n - P)
        said.append(
            f"{label}: {gone} of {len(rows)} tokens evicted, {eviction_summary(rows)}, {share:.1%} of all"
            f" attention (engine: 1 - kept_mass_mean = {rows['engine_missing'].iloc[0]:.1%})"
        )
    return "; ".join(said) + "."
