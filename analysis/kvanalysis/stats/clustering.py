"""The long table of `kvreplay clusterability` (docs/formats.md) in the shapes that figures draw."""

import numpy as np
import pandas as pd

from ..errors import ResultsError
from .intervals import UNIT, blocks_of, mean_interval, over_units
from .words import heads_words

VIEWS = ("keys", "keys_unrotated", "values")


def rows_of(table, measure):
    """Rows of one measure that have a value, in the drawn views; `x` and `param` as numbers."""
    rows = table[(table["measure"] == measure) & table["view"].isin(VIEWS) & table["value"].notna()]
    numbers = {name: pd.to_numeric(rows[name], errors="coerce") for name in ("param", "x", "value")}
    return rows.assign(**numbers)


def curve(table, measure, over=""):
    """`rows_of` a measure, each value divided by the scalar `over` of its head and view."""
    rows = rows_of(table, measure)
    if not over:
        return rows
    by = [*UNIT, "view"]
    scale = rows_of(table, over)[[*by, "value"]].rename(columns={"value": over})
    rows = rows.merge(scale, on=by)
    return rows.assign(value=rows["value"] / rows[over])[rows[over] > 0]


def intervals(rows, by):
    """Mean over heads with its 95 % interval, and their number, per group."""
    # Blocks are numbered once: indexing each of hundreds of groups takes longer than computing all their
    # means.
    blocks = blocks_of(over_units(rows, "value").index)
    groups = rows.assign(block=blocks).groupby(by, sort=True)[["value", "block"]]
    found = [(*key, *mean_interval(own["value"].to_numpy(), own["block"]), len(own)) for key, own in groups]
    return pd.DataFrame(found, columns=[*by, "mean", "low", "high", "n_heads"])


def lower_heads(rows, first, second):
    """(heads in which `first` has the lower value, heads that have both views); one row per head and view."""
    by_view = rows.set_index([*UNIT, "view"])["value"].unstack("view")
    if first not in by_view or second not in by_view:
        return 0, 0
    both = by_view.dropna(subset=[first, second])
    return int((both[first] < both[second]).sum()), len(both)


def points_note(table):
    """The note below figures of keys and values as points."""
    return (
        f"{heads_words(table)}. Bands: 95 % over layers. Keys as stored carry their rotation;"
        " un-rotated ones are rotated back to position 0."
    )


def attention_note(table):
    """The note below figures of the exact attention."""
    return f"Exact attention of {heads_words(table)}."


def head_values(table, measures):
    """Scalars of each query head: columns prompt, layer, kv_head, measure, param (head of the group), value.

    Raises ResultsError if the first of `measures` is missing; the others may be missing.
    """
    rows = table[table["measure"].isin(measures)].copy()
    if measures[0] not in set(rows["measure"]):
        raise ResultsError(f"the cluster step has no measure {measures[0]}; run it again with this program")
    rows["value"] = pd.to_numeric(rows["value"])
    return rows[["prompt", "layer", "kv_head", "measure", "param", "value"]].dropna(subset=["value"])


def scores_of(table):
    """{(prompt, layer, kv_head): A [T]}: attention that each token received, mean over the group's heads."""
    rows = table[table["measure"] == "accumulated"]
    if rows.empty:
        raise ResultsError("the cluster step has no accumulated scores; run it again with this program")
    found = {}
    for place, scores in rows.groupby(["prompt", "layer", "kv_head"], sort=True):
        order = np.argsort(pd.to_numeric(scores["x"]).to_numpy())
        found[place] = pd.to_numeric(scores["value"]).to_numpy()[order]
    return found
