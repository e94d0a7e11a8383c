"""t-SNE of keys and values of one head per layer, with the first k-center choices marked; a picture without a
verdict."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, finish, new_figure
from ...errors import FigureError
from ...stats.clustering import rows_of
from .views import VIEWS

SHOWN = ("keys", "values")
TENSOR = {"keys": "k", "values": "v"}
PANEL_HEIGHT = {COLUMN_WIDTH: 1.15, PAGE_WIDTH: 1.2}  # inches
PANEL_GAP = 0.62  # share of a panel, for two lines of title
CENTRE_COLOUR = "#000000"
EXAGGERATED, QUICK_ITERATIONS = 250, 50  # iterations of openTSNE's first phase; of each phase of a quick look
FASTEST_BELOW = 10_000  # points; with fewer, Barnes and Hut's tree is faster than openTSNE's interpolation


def derived_overrides(run, step):
    """The recorded layers at the ends and quarters, one seeded head, the first tokens."""
    trace = run.recorded()
    prompt = trace.prompts()[0]
    layers = trace.layers(prompt)
    heads, tokens, _ = trace.tensor(prompt, layers[0], "k").shape
    quarters = sorted({layers[round(i * (len(layers) - 1) / 4)] for i in range(5)})
    head = int(np.random.default_rng(run.option("seed", 0)).integers(heads))
    return {
        "select.prompts": [prompt],
        "select.layers": quarters,
        "select.kv_heads": [head],
        "replay.tokens": min(run.option("tokens"), tokens),
    }


def data(run):
    """{(layer, view): (points in the plane, numbers from the original space)}."""
    table = run.cluster()
    panels = [(layer, view) for view in SHOWN for layer in sorted(table["layer"].unique())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        maps = pool.map(lambda panel: _embedded(run, table, *panel), panels)
        numbers = [_numbers(table, run.option("centres"), *panel) for panel in panels]
        return dict(zip(panels, zip(maps, numbers, strict=True), strict=True))


def draw(run, panels):
    table = pd.concat([points for points, _ in panels.values()])
    numbers = {panel: own for panel, (_, own) in panels.items()}
    more = pd.DataFrame([{"layer": layer, "view": view} | own for (layer, view), own in numbers.items()])
    title = "t-SNE of keys and values with k-center choices"
    paint = partial(_figure, panels, _note(run, run.cluster()))
    return [Picture(title, table, paint, _caption(run, numbers), more={"numbers": more})]


def _embedded(run, table, layer, view):
    """One row per token: its place in the plane, and its rank among the centres (empty: none)."""
    rows = table[table["layer"] == layer]
    prompt, head = rows["prompt"].iloc[0], int(rows["kv_head"].iloc[0])
    tokens = int((rows["measure"] == "accumulated").sum())
    points = run.recorded().tensor(prompt, layer, TENSOR[view])[head, :tokens]
    place = _tsne(run, points)
    ranked = pd.Series(pd.NA, index=range(tokens), dtype="Int64")
    centres = rows_of(rows, "centers")
    centres = centres[(centres["view"] == view) & (centres["x"] <= run.option("centres"))]
    ranked[centres["value"].astype(int).to_list()] = centres["x"].astype(int).to_list()
    return pd.DataFrame(
        {"layer": layer, "kv_head": head, "view": view, "token": range(tokens), "tsne_1": place[:, 0]}
        | {"tsne_2": place[:, 1], "centre": ranked}
    )


def _tsne(run, points):
    # joblib, used by openTSNE, warns if the machine does not report its cores; one core is enough here.
    os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")
    try:
        from openTSNE import TSNE
    except ImportError as problem:
        raise FigureError(f"{run.config.path}: tsne_panels needs openTSNE: pip install openTSNE") from problem
    perplexity = min(run.option("perplexity"), (len(points) - 1) / 3)
    how = "bh" if len(points) < FASTEST_BELOW else "fft"
    iterations = _iterations(run)
    return TSNE(
        perplexity=perplexity, random_state=run.option("seed", 0), n_jobs=1, neighbors="exact",
        negative_gradient_method=how, n_iter=iterations, early_exaggeration_iter=min(EXAGGERATED, iterations),
    ).fit(points)  # fmt: skip


def _iterations(run):
    return min(run.option("iterations"), QUICK_ITERATIONS) if run.quick else run.option("iterations")


def _numbers(table, centres, layer, view):
    """r_k/rms for `centres` and the largest k; mean distance to the nearest of `centres` over rms."""
    rows = table[(table["layer"] == layer) & (table["view"] == view)]
    rms = rows.loc[rows["measure"] == "rms", "value"].astype(float).iloc[0]
    by_k = {m: rows_of(rows, m).set_index("x")["value"] / rms for m in ("radii", "mean_distance")}
    most = int(by_k["radii"].index.max())
    first = min(centres, most)
    return {
        "first_k": first,
        "first_radius": by_k["radii"][first],
        "most_k": most,
        "most_radius": by_k["radii"][most],
        "first_mean_distance": by_k["mean_distance"][first],
    }


def _figure(panels, note, width):
    figure = new_figure(width)
    layers = sorted({layer for layer, _ in panels})
    shape = (len(SHOWN), len(layers)) if width == PAGE_WIDTH else (len(layers), len(SHOWN))
    grid = figure.subplots(*shape, squeeze=False)
    grid = grid if width == PAGE_WIDTH else grid.T
    for axes, ((layer, view), (points, n)) in zip(grid.flat, panels.items(), strict=True):
        style, marked = VIEWS[view], points[points["centre"].notna()]
        axes.scatter(points["tsne_1"], points["tsne_2"], s=1.5, color=style.colour, linewidths=0, alpha=0.6)
        cross = {"s": 13, "marker": "X", "color": CENTRE_COLOUR, "edgecolors": "white", "linewidths": 0.4}
        axes.scatter(marked["tsne_1"], marked["tsne_2"], **cross)
        said = f"r{n['first_k']} {n['first_radius']:.2f}  r{n['most_k']} {n['most_radius']:.2f}"
        title = f"layer {layer}, {view}\n{said}\nmean {n['first_mean_distance']:.2f}"
        axes.set_title(title, loc="left", pad=2, fontsize=6, linespacing=1.15)
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
    handles = [Line2D([], [], color=VIEWS[v].colour, marker=".", linestyle="") for v in SHOWN]
    handles.append(Line2D([], [], color=CENTRE_COLOUR, marker="X", linestyle=""))
    rows, height = shape[0], PANEL_HEIGHT[width]
    texts = ["a token's key", "a token's value", "k-center choice"]
    finish(figure, handles, texts, note, height * (rows + (rows - 1) * PANEL_GAP), below=0.1,
           hspace=PANEL_GAP - 0.2, wspace=0.08, top=0.45)  # fmt: skip
    return figure


def _note(run, table):
    head = int(table["kv_head"].iloc[0])
    return (
        f"kv head {head} (drawn with seed {run.option('seed', 0)}) of trace {table['trace_id'].iloc[0][:12]}."
        " Numbers: k-center radius r_k and mean distance to the nearest of the marked centres, both divided"
        " by the root mean square distance to the mean. Axes have no unit."
    )


def _caption(run, numbers):
    words = [
        f"layer {layer} {view}: r_{n['first_k']}/rms {n['first_radius']:.2f}, r_{n['most_k']}/rms"
        f" {n['most_radius']:.2f}, mean distance/rms {n['first_mean_distance']:.2f}"
        for (layer, view), n in numbers.items()
    ]
    return (
        f"openTSNE, perplexity {run.option('perplexity')}, {_iterations(run)} iterations, seed"
        f" {run.option('seed', 0)}. t-SNE alone proves nothing: it shows clusters in any data and distorts"
        f" distances; the numbers come from the original space. {'; '.join(words)}."
    )
