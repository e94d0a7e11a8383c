"""Statements about every single layer. A layer of a text is one block and has no interval of its own, so
layers are counted."""

import pandas as pd

from .intervals import BLOCK, FEWEST_BLOCKS, unit_means, used_rows
from .verdict import UNDECIDED, of_counts
from .words import count

LISTED = 6  # layers of a text that are listed in words
EVERY = (
    "{what} in each layer of each text, heads and seeds averaged first: holds if it is below zero in all"
    f" layers, does not hold if in none, mixed otherwise, not decided with fewer than {FEWEST_BLOCKS} layers"
)


def in_every_layer(low: pd.DataFrame, high: pd.DataFrame, measure: str) -> tuple[str, str]:
    """(outcome, numbers) of "`low` is lower than `high` in every layer", over the heads that both have."""
    units = [unit_means(used_rows(rows), [measure])[measure] for rows in (low, high)]
    both = pd.concat(units, axis=1, join="inner", keys=["low", "high"]).dropna()
    if both.empty:
        return UNDECIDED, "no head has results of both"
    layers = both.groupby(level=BLOCK).mean()
    less = int((layers["low"] < layers["high"]).sum())
    outcome = of_counts(less, len(layers)) if len(layers) >= FEWEST_BLOCKS else UNDECIDED
    return outcome, f"less in {less} of {count(len(layers), 'layer')}; {_pairs(layers)}"


def _pairs(layers: pd.DataFrame) -> str:
    """Both means of each layer of the model, over texts; of many layers, only those nearest to contradicting
    the claim."""
    means = layers.groupby(level="layer").mean()
    nearest = (means["low"] / means["high"]).sort_values(ascending=False, kind="stable").index[:LISTED]
    pairs = ", ".join(
        f"layer {layer}: {means['low'][layer]:.3g} against {means['high'][layer]:.3g}"
        for layer in sorted(nearest)
    )
    return pairs if len(means) <= LISTED else f"nearest to contradicting it: {pairs}"


def errors_by_layer(rows: pd.DataFrame, measure: str) -> str:
    """The mean of each layer, as text."""
    units = unit_means(used_rows(rows), [measure])[measure]
    if units.empty:
        return "no results"
    means = units.groupby(level="layer").mean()
    return ", ".join(f"layer {layer}: {mean:.3g}" for layer, mean in means.items())
