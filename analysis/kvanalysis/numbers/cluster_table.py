"""What plots read of a cluster step's long table (interfaces.md, section 6)."""

import numpy as np
import pandas as pd

from ..errors import ResultsError
from .words import count


def head_values(table, measures):
    """Scalars of each query head: columns prompt, layer, kv_head, measure, param (head of the group), value.

    Raises ResultsError if the first of `measures` is missing; the others may be.
    """
    rows = table[table["measure"].isin(measures)].copy()
    if measures[0] not in set(rows["measure"]):
        raise ResultsError(f"the cluster step has no measure {measures[0]}; run it again with this program")
    rows["value"] = pd.to_numeric(rows["value"])
    return rows[["prompt", "layer", "kv_head", "measure", "param", "value"]].dropna(subset=["value"])


def scores_of(table):
    """{(prompt, layer, kv_head): A [T]}: attention that each token received from all rows of the group."""
    rows = table[table["measure"] == "accumulated"]
    if rows.empty:
        raise ResultsError("the cluster step has no accumulated scores; run it again with this program")
    found = {}
    for place, scores in rows.groupby(["prompt", "layer", "kv_head"], sort=True):
        order = np.argsort(pd.to_numeric(scores["x"]).to_numpy())
        found[place] = pd.to_numeric(scores["value"]).to_numpy()[order]
    return found


def cluster_note(table):
    """What was measured."""
    heads = len(table.drop_duplicates(["prompt", "layer", "kv_head"]))
    texts = table["prompt"].nunique()
    trace, model = str(table["trace_id"].iloc[0])[:12], table["model"].iloc[0] or "unnamed model"
    what = f"{count(heads, 'kv head')} from {count(texts, 'text')}"
    return f"Exact attention of {what} of trace {trace} ({model})."
