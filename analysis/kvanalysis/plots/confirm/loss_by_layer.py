"""How well the error of each single layer predicts the model's loss, for a folder that holds confirm.csv."""

from ...drawing.curve_axes import Axis
from ...drawing.curves import Sheet, curves_picture
from ...predict.best import FEWEST_LAYERS, choice_correlations, layer_correlations, shown_choices
from ...predict.instances import trace_instances
from ...predict.measures import BY_NAME, THIRDS
from ...predict.words import METHODS_NOTE, confirmed_note, shown_texts, shown_words, two


def data(run):
    """(correlations of every layer, instances, correlations of the best measure); None without confirm.csv or
    with fewer than FEWEST_LAYERS layers."""
    instances = trace_instances(run.rows)
    choices = shown_choices(instances) if instances and len(instances.layers) >= FEWEST_LAYERS else []
    if not choices:
        return None
    names = list(dict.fromkeys(each.measure for each in choices[::-1]))
    ranks = choice_correlations(instances, choices[:1], resampled=False)
    return layer_correlations(instances, names), instances, ranks


def draw(_run, found):
    """A panel for each text, a curve for each measure."""
    table, instances, ranks = found
    shown = shown_texts(ranks.prompts, ranks.rho[:, 0, 0])
    few = table[table["prompt"].isin([ranks.prompts[text] for text in shown])]
    points = few.rename(columns={"prompt": "panel", "layer": "x", "spearman": "y", "spearman_low": "low",
                                   "spearman_high": "high"})  # fmt: skip
    points = points.assign(label=points["measure"].map(lambda name: BY_NAME[name].words))
    lowest = min(0.0, float(points[["y", "low"]].min().min()))
    limits = (max(-1.05, lowest - 0.05), 1.03)
    note = (
        f"{shown_words(shown, len(ranks.prompts))} {confirmed_note(instances)} Rank correlation (Spearman) of"
        " the error of one layer with the loss increase over the instances of a text, without oracles."
        f" {METHODS_NOTE}"
    )
    sheet = Sheet(
        title="How well the error of each layer predicts the loss",
        points=points,
        x=Axis("layer"),
        y=Axis("rank correlation with the loss", limits=limits, levels={"none": 0.0}),
        note=note.strip(),
        caption=_caption(table),
        markers=False,
    )
    return [curves_picture(sheet, "loss_by_layer")]


def _caption(table):
    """Means over texts for each third of the layers, and the best layer."""
    texts = []
    for name, own in table.groupby("measure", sort=False):
        by_layer = own.groupby("layer")["spearman"].mean()
        third = -(-len(by_layer) // 3)
        parts = [by_layer.iloc[i * third : (i + 1) * third].mean() for i in range(3)]
        best = by_layer.idxmax()
        words = ", ".join(f"{two(part)} in the {name}" for part, name in zip(parts, THIRDS, strict=True))
        texts.append(
            f"{BY_NAME[name].words}: mean over texts and layers {words}; best layer {best}"
            f" ({two(by_layer[best])})"
        )
    return ". ".join(texts)
