"""Storage of rows, at full cache: error against the bytes of a row, and error by layer.

Only instances of `exact`. Formats that leave keys or values as recorded, which claims need, are only in the
table: in the picture they would lie far to the right of the formats they belong to.
"""

from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D

from ...data.row_formats import SOURCE, is_rotated, parts_named, row_format_text
from ...drawing.heat_panel import heat_panel
from ...drawing.log_ticks import plain_log
from ...drawing.point_labels import label_points
from ...drawing.saving import Picture
from ...drawing.style import COLOURS, COLUMN_WIDTH, MARKERS, PAGE_WIDTH, finish, new_figure
from ...errors import FigureError
from ...stats.claims import claims_judged
from ...stats.families import spread
from ...stats.intervals import by_trace, head_points, unit_means, used_rows
from ...stats.words import replay_note
from .error_vs_bytes import FRONT

# Prefixes of format names, by what the formats have in common.
FAMILIES = {
    "integers": ("int",),
    "integers of llama.cpp": ("q4", "q5", "q8"),
    "8-bit floats": ("fp8", "mxfp8"),
    "4-bit floats": ("nvfp4", "mxfp4"),
    "rotated codebooks": ("turboquant", "tq_", "polar"),
    "keys by channel": ("kivi", "gear", "kvquant", "pca"),
    "other": ("",),
}
HEIGHT = {COLUMN_WIDTH: 2.6, PAGE_WIDTH: 3.3}  # inches
ROW_HEIGHT = 0.165  # inches: two lines of a narrow figure's names
NAME_SIZE = {COLUMN_WIDTH: 4.8, PAGE_WIDTH: 5.8}  # points
NAME_LETTERS = {COLUMN_WIDTH: 34, PAGE_WIDTH: 64}  # letters of a line
MOST_LAYERS = {COLUMN_WIDTH: 5, PAGE_WIDTH: 10}
LAYER = "layer_"  # prefix of columns of the table
MARGIN = 1.2  # factor beyond the points
BYTES = "bytes of a token and kv head"
STORED = (
    "Bytes: everything stored at the peak, divided by the tokens held: codes, scales, norms, outliers, and"
    " rows that are not quantised yet, at the width of the trace."
)
UNNAMED = "Names without room are in the CSV."


def data(run):
    """[(prefix of file names, rows of a trace, its table)]: the table has a row per format."""
    return [(first, rows, _table(rows)) for first, rows in by_trace(_exact(run))]


def draw(_run, found):
    return [picture for each in found for picture in _of_trace(*each)]


def claims(run, _found):
    return claims_judged(run, run.frame())


def _exact(run):
    frame = run.frame()
    rows = frame[frame["method"] == "exact"]
    if used_rows(rows).empty:
        raise FigureError(f"{run.config.path}: row_formats needs finished cells of exact with a row_format")
    formats = rows["params"].map(lambda params: params.get("row_format", SOURCE))
    return rows.assign(format=formats.map(row_format_text), row_format=formats)


def _table(rows):
    """A row per format: family, bytes, mean error with interval, and the error of each layer."""
    used = used_rows(rows).assign(row_bytes=lambda cells: cells["total_bytes"] / cells["peak_kept_tokens"])
    points = head_points(used, "rel_err_out_mean", ["format"]).set_index("format")
    means = unit_means(used, ["rel_err_out_mean", "row_bytes"], ["format"])
    layers = means["rel_err_out_mean"].groupby(level=["format", "layer"]).mean().unstack("layer")
    known = used.groupby("format")["row_format"].first()
    return pd.DataFrame(
        {
            "family": known.map(family_of),
            "whole": known.map(lambda each: SOURCE not in parts_named(each)),
            "rotated": known.map(is_rotated),
            "row_bytes": means["row_bytes"].groupby(level="format").mean(),
            "mean": points["y"],
            "low": points["low"],
            "high": points["high"],
            "n_heads": points["n_units"],
            **{layer_column(layer): layers[layer] for layer in layers},
        }
    ).reset_index()


def layer_column(layer):
    return f"{LAYER}{layer}"


def family_of(row_format):
    """One of FAMILIES: that of the keys, or that of the values if keys are as recorded."""
    name = next((name for name in parts_named(row_format) if name != SOURCE), SOURCE)
    return next(family for family, begins in FAMILIES.items() if name.startswith(begins))


def _of_trace(first, rows, table):
    whole = table[table["whole"] & (table["mean"] > 0)]
    note, order = replay_note(rows), _sorted(table)
    pictures = [Picture("Error by row format and layer", order, partial(_by_layer, order, note), _said(rows),
                        f"{first}layers")]  # fmt: skip
    if len(whole):
        scatter = partial(_against_bytes, whole, note)
        pictures.insert(0, Picture("Error against the bytes of a row", whole, scatter, _front(whole),
                                   f"{first}bytes"))  # fmt: skip
    return pictures


def _sorted(table):
    """Whole formats by their error, then formats of keys or values alone."""
    return table.sort_values(["whole", "mean"], ascending=[False, True], kind="stable").reset_index(drop=True)


def front_of(whole):
    """The rows on the Pareto front of bytes and error, by rising bytes."""
    by_bytes = whole.sort_values(["row_bytes", "mean"])
    return by_bytes[by_bytes["mean"] < by_bytes["mean"].cummin().shift(fill_value=np.inf)]


def _front(whole):
    each = (f"{row.format} ({row.row_bytes:.3g}, {row.mean:.3g})" for row in front_of(whole).itertuples())
    words = "; ".join(each)
    return f"Pareto front (bytes, error): {words}."


def _said(rows):
    failed = int((rows["status"] != "ok").sum())
    text = "Mean relative output error, seeds and heads averaged; below the line: keys or values only."
    return text + (f" {failed} of {len(rows)} cells have no result." if failed else "")


def _looks(table):
    """{family: (colour, marker)} for all families, so that looks do not depend on what is drawn."""
    looks = dict(zip(FAMILIES, zip(COLOURS, MARKERS, strict=False), strict=False))
    return {family: look for family, look in looks.items() if family in set(table["family"])}


def _against_bytes(whole, note, width):
    figure, looks = new_figure(width), _looks(whole)
    axes = figure.subplots()
    for row in whole.itertuples():
        colour, marker = looks[row.family]
        face = "white" if row.rotated else colour
        axes.plot(row.row_bytes, row.mean, marker, color=colour, markerfacecolor=face, markersize=4.5)
    front = front_of(whole)
    axes.step(front["row_bytes"], front["mean"], where="post", zorder=1, **FRONT)
    axes.set(xscale="log", yscale="log", xlabel=f"{BYTES} [B]", ylabel="mean relative output error")
    axes.set_ylim(whole["mean"].min() / MARGIN, whole["mean"].max() * MARGIN)
    axes.set_xlim(whole["row_bytes"].min() / 1.1, whole["row_bytes"].max() * 1.15)
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
    handles = [Line2D([], [], color=colour, marker=mark, linestyle="") for colour, mark in looks.values()]
    legend = ([*handles, Line2D([], [], **FRONT)], [*looks, "Pareto front"])
    finish(
        figure,
        *legend,
        f"{note} Hollow: rotated by `rotate` before quantisation. {UNNAMED} {STORED}",
        HEIGHT[width],
    )
    label_points(axes, _wanted(whole), whole[["row_bytes", "mean"]].to_numpy().tolist())
    return figure


def _wanted(whole):
    """[(bytes, error, name)]: the front and the highest points get room first, mixtures last."""
    mixed, below = whole["format"].str.contains(" + ", regex=False), ~whole.index.isin(front_of(whole).index)
    order = whole.assign(mixed=mixed, below=below).sort_values(["mixed", "below", "mean"],
                                                               ascending=[True, True, False])  # fmt: skip
    return list(order[["row_bytes", "mean", "format"]].itertuples(index=False, name=None))


def _by_layer(table, note, width):
    every = [name for name in table if name.startswith(LAYER)]
    layers = spread(every, MOST_LAYERS[width])
    values = table[[*layers, "mean"]].to_numpy(dtype=float)
    texts = [[f"{value:#.2g}" if np.isfinite(value) else "" for value in row] for row in values]
    positive = values[np.isfinite(values) & (values > 0)]
    norm = LogNorm(positive.min(), max(positive.max(), positive.min() * 1.01)) if len(positive) else LogNorm()
    names = [fill(f"{row.format}  {row.row_bytes:.0f} B", NAME_LETTERS[width]) for row in table.itertuples()]
    figure = new_figure(width)
    axes = figure.subplots()
    shown = np.where(values > 0, values, norm.vmin)
    heat_panel(axes, shown, texts, norm, names, [*(name.removeprefix(LAYER) for name in layers), "all"])
    axes.axhline(table["whole"].sum(), color="black", linewidth=1)
    axes.set_yticks(axes.get_yticks(), names, fontsize=NAME_SIZE[width], linespacing=0.85)
    axes.set_xlabel("layer")
    some = "" if layers == every else f"{len(layers)} of {len(every)} layers; all of them are in the CSV. "
    finish(figure, [], [], f"{note} {some}{STORED}", ROW_HEIGHT * len(names))
    return figure
