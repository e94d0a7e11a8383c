"""How far apart one instance's losses are on different texts, and how far its errors."""

import numpy as np

from .confirm_exceptions import LEAST_NATS
from .confirmed_instances import LOSS


def spread_over_texts(found, values):
    """(median ratio of largest to smallest loss, the same of `values`, instances) over instances that every
    text has and whose losses are above noise; NaN, NaN, 0 below two texts."""
    table = found.table.assign(value=values)
    groups = table.groupby(["label", "budget_tokens"], dropna=False)
    ends = groups.agg(low=(LOSS, "min"), high=(LOSS, "max"), least=("value", "min"), most=("value", "max"),
                      texts=("prompt", "nunique"))  # fmt: skip
    known = ends[(ends["texts"] == len(found.texts())) & (ends["low"] > LEAST_NATS) & (ends["least"] > 0)]
    if len(found.texts()) < 2 or known.empty:
        return np.nan, np.nan, 0
    return (
        float((known["high"] / known["low"]).median()),
        float((known["most"] / known["least"]).median()),
        len(known),
    )
