"""Predicted losses as table cells, and a note on them."""

import numpy as np
import pandas as pd

from ..stats.format import ABSENT


def predicted_cells(table):
    """(header, rows): a row for each instance, texts separately, the lowest loss of a budget first.

    A cell is (text, sort key)."""
    known = "kl_mean" in table
    header = ["prompt", "method", "budget", "predicted nats", "95 % interval", "of single heads",
              *(["measured"] if known else [])]  # fmt: skip
    ordered = table.sort_values(["prompt", "budget_tokens", "kl"], kind="stable", na_position="first")
    return header, [_cells(row, known) for row in ordered.itertuples()]


def _cells(row, known):
    budget = (
        (ABSENT, None) if pd.isna(row.budget_tokens) else (f"{int(row.budget_tokens)}", row.budget_tokens)
    )
    span = (ABSENT, None) if np.isnan(row.kl_low) else (f"{row.kl_low:.3g} … {row.kl_high:.3g}", row.kl_low)
    measured = [_number(row.kl_mean)] if known else []
    return [(row.prompt, row.prompt), (row.label, row.label), budget, _number(row.kl), span,
            _number(row.kl_head), *measured]  # fmt: skip


def _number(value):
    return (ABSENT, None) if pd.isna(value) else (f"{value:.3g}", value)


def predicted_note(table):
    """One line: the basis of the numbers."""
    layers = int(table["layers"].min())
    rest = f"errors of {layers} layers: if the model has more, the loss is a lower bound"
    if table["kl_low"].isna().all():
        return f"KL divergence, nats a token; second order only, since the trace holds no masked runs; {rest}"
    return f"KL divergence, nats a token, corrected by the model's response to masks of that size; {rest}"
