"""H2O Fig. 2a: the share of attention entries below 1 % of their row's maximum, and the sink's mass."""

import pandas as pd

from ...drawing.curve_axes import Axis
from ...drawing.curves import Sheet, curves_picture
from ...stats.clustering import attention_note, head_values
from ...stats.verdict import FAILS, HOLDS, MIXED, Verdict

SPARSE, ALMOST_ALL = 0.95, 0.9
VIEWS = {
    "sparsity": ("sparsity", "all tokens"),
    "sparsity_no_sink": ("sparsity", "without token 0"),
    "sink_mass": ("mass on token 0", "mass on token 0"),
}


def data(run):
    """(values of every query head, points of the figure)."""
    heads = head_values(run.cluster(), list(VIEWS))
    return heads, points_of(heads)


def draw(run, found):
    """One dot per query head, one line through the means."""
    heads, points = found
    sheet = Sheet(
        title="Sparsity of attention by layer",
        points=points,
        x=Axis("layer (0-based)", ticks={i: str(layer) for i, layer in enumerate(layers_of(heads))}),
        y=Axis("share", limits=(0, 1.03), levels={f"the paper's {SPARSE:g}": SPARSE}),
        note=f"{attention_note(run.cluster())} Sparsity: causal entries of rows from 1 on below 1 % of their"
        " row's maximum; masked entries are not counted. Dots: query heads; lines: means.",
        caption=caption(heads),
        levels_in=("sparsity",),
    )
    return [curves_picture(sheet)]


def claims(_run, found):
    return [verdict(found[0], view) for view in ("sparsity", "sparsity_no_sink")]


def layers_of(heads):
    return sorted(heads["layer"].unique())


def points_of(heads):
    """The means over heads as a line, every head as a dot with the label of the line."""
    place = {layer: i for i, layer in enumerate(layers_of(heads))}
    dots = heads.assign(x=heads["layer"].map(place), y=heads["value"], dot=True)
    means = dots.groupby(["measure", "x", "layer"], sort=True, as_index=False)["y"].mean().assign(dot=False)
    points = pd.concat([means, dots], ignore_index=True)
    points["panel"] = points["measure"].map(lambda name: VIEWS[name][0])
    points["label"] = points["measure"].map(lambda name: VIEWS[name][1])
    order = list(VIEWS)
    points = points.sort_values("measure", key=lambda names: names.map(order.index), kind="stable")
    return points[["panel", "label", "layer", "kv_head", "param", "x", "y", "dot"]].rename(
        columns={"param": "query_head"}
    )


def caption(heads):
    texts = []
    for measure, (_, label) in VIEWS.items():
        means = heads[heads["measure"] == measure].groupby("layer")["value"].mean()
        if len(means):
            name = label if measure == "sink_mass" else f"sparsity, {label}"
            texts.append(f"{name}: " + ", ".join(f"L{layer} {value:.2f}" for layer, value in means.items()))
    return (
        "Means over query heads. "
        + ". ".join(texts)
        + ". The row's maximum is usually the sink, so a threshold of 1 %"
        " of it is mostly about one token; without token 0 the row is renormalised."
    )


def verdict(heads, measure):
    """Whether almost all layers are sparse: the mean over heads above 0.95 in at least nine of ten recorded
    layers."""
    means = heads[heads["measure"] == measure].groupby("layer")["value"].mean()
    share = (means > SPARSE).mean() if len(means) else float("nan")
    outcome = HOLDS if share >= ALMOST_ALL else FAILS if share < 0.5 else MIXED
    low, high = (means.min(), means.max()) if len(means) else (float("nan"),) * 2
    return Verdict(
        claim=f"attention is more than 95 % sparse in almost all layers ({VIEWS[measure][1]})",
        source="H2O Fig. 2a, section 3",
        how=f"mean over heads above {SPARSE:g} in at least {ALMOST_ALL:.0%} of the layers holds, below"
        " half fails",
        outcome=outcome,
        numbers=f"{(means > SPARSE).sum()} of {len(means)} layers; from {low:.2f} to {high:.2f}",
    )
