"""The numbers of the interactive figure: bytes and measures of every label and budget, over all layers and in
each layer, the ends of the axes and the places of the names."""

import json

import numpy as np
import pandas as pd

from ..answer.measures import DEFAULT, MAIN
from ..answer.sizes import PEAK, PROMPT, SIZES, default_size
from ..data.metrics import MORE, loss, metrics_of
from ..drawing.budget_axes import AS_ZEROS, ROUNDING, top_of
from ..drawing.end_labels import spread
from ..stats.families import FAMILIES, family_of
from ..stats.intervals import blocks_of, mean_intervals, unit_means, used_rows

MEASURES = (
    DEFAULT,
    MAIN,
    "cosine_mean",
    "rel_err_out_p95",
    "eps_spectral_mean",
    "partition_err_mean",
    "kept_mass_mean",
)
DIGITS = 4
FRAME, LINE = 270, 14  # pixels: minimum height of the axes, and height of a name
MARGIN = 1.25  # factor beyond the smallest and the largest value
WHOLE = {PEAK: "the full cache", PROMPT: "the prompt’s full cache, after the cut"}
LETTERS = 160  # longest text of parameters


def curves_data(frame, styles):
    """A dict that JSON can hold. `whole`: the cache whose bytes are 100 %.

    `points` {name: list}: label, family, budget, params, colour, marker, dash of each label and budget.
    `views` [{name, x, kib, heads, measures: {name: {mean, low, high, range, ends}}}]: over all layers and in
    each layer, for each trace; lists as long as those of `points`, None where there is no result.
    """
    used = used_rows(frame)
    used = used.assign(budget=used["budget_tokens"].fillna(-1).astype(int))
    known = metrics_of(frame.attrs.get("meta", {}))
    there = [name for name in MEASURES if name in known and name in used]
    measures = {name: known[name] for name in there if used[name].notna().any()}
    points = _points(used, styles, family_of(frame))
    keys = list(zip(points["label"], points["budget"], strict=True))
    of = PROMPT if default_size(frame) == PROMPT else PEAK
    size = [SIZES[of].held, SIZES[of].full]
    views = [_view(name, rows, keys, points, measures, size) for name, rows in _scopes(used)]
    points["budget"] = [None if budget < 0 else int(budget) for budget in points["budget"]]
    return {
        "points": points,
        "views": views,
        "whole": WHOLE[of],
        "families": [family for family in FAMILIES if family in set(points["family"])],
        "measures": {name: _title(measure) for name, measure in measures.items()},
    }


def _title(measure):
    if measure.words == measure.name:
        return measure.name
    return f"{measure.words} ({'1 − ' if measure.better == MORE else ''}{measure.name})"


def _points(used, styles, families):
    first = used.groupby(["label", "budget"], sort=True).first().reset_index()
    looks = [styles[label] for label in first["label"]]
    return {
        "label": first["label"].tolist(),
        "family": [families[label] for label in first["label"]],
        "budget": first["budget"].tolist(),
        "params": [_params(row) for row in first["params"]],
        "oracle": [bool(oracle) for oracle in first["oracle"]],
        "colour": [look.colour for look in looks],
        "marker": [look.bokeh_marker for look in looks],
        "dash": ["solid" if look.dashes == "-" else "dashed" for look in looks],
    }


def _params(params):
    text = ", ".join(f"{name}={json.dumps(value)}" for name, value in params.items()).replace('"', "")
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _scopes(used):
    """(name, rows) of each trace: all its layers, then each layer."""
    several = used["trace_id"].nunique() > 1
    for trace, rows in used.groupby("trace_id", sort=True):
        before = f"trace {trace[:8]}, " if several else ""
        layers = sorted(rows["layer"].unique())
        yield f"{before}all {len(layers)} layers" if len(layers) > 1 else f"{before}layer {layers[0]}", rows
        for layer in layers if len(layers) > 1 else ():
            yield f"{before}layer {layer}", rows[rows["layer"] == layer]


def _view(name, rows, keys, points, measures, size):
    units = unit_means(rows, [*measures, *size], ["label", "budget"])
    tables = {column: units[column].unstack(["label", "budget"]) for column in (*measures, *size)}
    tables = {
        column: table.reindex(columns=pd.MultiIndex.from_tuples(keys)) for column, table in tables.items()
    }
    held, full = (tables[column].mean().to_numpy(float) for column in size)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 100 * held / full
    heads = tables[MAIN].notna().sum().to_numpy()
    return {
        "name": name,
        "x": _numbers(share),
        "kib": _numbers(held / 1024),
        "heads": heads.tolist(),
        "measures": {
            name: _measure(loss(tables[name], measure.better), share, points)
            for name, measure in measures.items()
        },
    }


def _measure(values, share, points):
    whole = values.dropna(axis="columns")
    mean, low, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    mean[:] = values.mean().to_numpy()
    at = values.columns.get_indexer(whole.columns)
    if len(at):
        mean[at], low[at], high[at] = mean_intervals(whole.to_numpy(float), blocks_of(whole.index))
    mean[~(mean > ROUNDING)] = np.nan
    bottom, top = _range(mean)
    low = np.maximum(low, bottom / 2)  # a logarithmic axis has no zero
    return {
        "mean": _numbers(mean),
        "low": _numbers(low),
        "high": _numbers(high),
        "range": [bottom, top],
        "ends": _ends(mean, share, points, bottom, top),
    }


def _range(mean):
    known = mean[np.isfinite(mean)]
    if not len(known):
        return 0.1, AS_ZEROS
    top = min(top_of(known), known.max() * MARGIN)
    return float(f"{known.min() / MARGIN:.4g}"), float(f"{top:.4g}")


def _ends(mean, share, points, bottom, top):
    """{label: (place in the lists of its last point on the axes, height of its name)}."""
    shown = pd.DataFrame({"label": points["label"], "family": points["family"], "x": share, "y": mean})
    shown = shown[shown["x"].notna() & (shown["y"] <= top)].sort_values("x", kind="stable")
    last = shown.reset_index(names="place").groupby("label", sort=True).tail(1)
    scale = FRAME / np.log(top / bottom)
    ends = {}
    for _, own in last.groupby("family"):
        wanted = np.log(own["y"].to_numpy() / bottom) * scale
        places = spread(wanted, np.full(len(own), LINE), 0, FRAME)
        heights = bottom * np.exp(places / scale)
        for label, place, height in zip(own["label"], own["place"], heights, strict=True):
            ends[label] = (int(place), float(f"{height:.4g}"))
    return ends


def _numbers(values):
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values]
