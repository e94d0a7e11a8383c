"""What each instance of a run costs the model, in nats a token, from the trace alone."""

from pathlib import Path

import numpy as np
import pandas as pd

from ..data.arrays import Arrays
from ..data.confirmed import INSTANCE, confirmed, whole_rows
from ..errors import ResultsError
from .estimate import by_blocks, by_row, interval, label_noise, whole
from .response import response_of

COLUMNS = ["trace_id", "prompt", "method", "label", "params", "budget_tokens", "seed", "layers", "n_rows",
           "kl", "kl_low", "kl_high", "kl_row", "kl_block", "kl_full", "kl_head"]  # fmt: skip
REMEDY = "record the trace with kvdump --with-gradient, and add `output: {save: [projections]}`"


def predicted(frame):
    """A row of COLUMNS for each instance of `load`'s table, and `kl_mean` where kvconfirm measured it.

    `kl_row`, `kl_block`, `kl_full`: the second order, see `estimate`; `kl_head`: the sum over single heads,
    without their pairs. `kl`: `kl_row` as the model answers to errors of this size (`response`), with a 95 %
    interval for the labels' noise and for what two disturbances of one size are apart; of a trace without
    such runs `kl_block`, and no interval. `layers`: how many the instance holds: all numbers are those of
    these layers alone, so of fewer than the model's they are lower bounds. Raises ResultsError without
    projections.
    """
    if "kl_head_mean" not in frame or frame["kl_head_mean"].isna().all():
        raise ResultsError(f"the results hold no kl_head_mean: {REMEDY}")
    arrays = Arrays(Path(frame.attrs["folders"][0]) / "projections.h5")
    used = frame[frame["status"] == "ok"]
    responses = _responses(used)
    rows = [
        _row(key, cells, arrays, responses.get(key[:2]))
        for key, cells in used.groupby(INSTANCE, dropna=False, sort=False)
    ]
    # Budgets or seeds that are all missing would have no type to be merged by.
    types = {name: frame[name].dtype for name in ("budget_tokens", "seed")}
    return _beside_confirmed(pd.DataFrame(rows).astype(types), frame)


def _responses(frame):
    """{(trace_id, prompt): Response} of the traces that are still where the run read them."""
    traces = frame.attrs["meta"].get("traces") or []
    paths = {trace["trace_id"]: Path(trace["path"]) for trace in traces}
    found = {}
    for trace, prompt in frame[["trace_id", "prompt"]].drop_duplicates().itertuples(index=False):
        path = paths.get(trace)
        if path is not None and path.is_file() and (response := response_of(path, prompt)):
            found[trace, prompt] = response
    return found


def _row(key, cells, arrays, response):
    a = sum_over_heads(cells, arrays)
    row, blocks, head = by_row(a), by_blocks(a), float(cells["kl_head_mean"].sum())
    kl, low, high = blocks, np.nan, np.nan
    if response:
        kl = response.of(row)
        low, high = interval(kl, label_noise(a), response.spread()) if row else (kl, kl)
    first = cells.iloc[0]
    layers = cells["layer"].nunique()
    values = [
        first[name] for name in ("trace_id", "prompt", "method", "label", "params", "budget_tokens", "seed")
    ]
    numbers = [layers, len(a), kl, low, high, row, blocks, whole(a), head]
    return dict(zip(COLUMNS, [*values, *numbers], strict=True)) | {"given_json": key[3]}


def sum_over_heads(cells, arrays):
    """a [rows, S] float64 of an instance, summed over its cells and their query heads.

    The last token, from which nobody predicts, is left out."""
    total = 0.0
    for cell, n_tokens in zip(arrays.each(cells["key"]), cells["n_tokens"], strict=True):
        total = total + cell["a"][:, cell["rows"] < n_tokens - 1].sum(axis=0, dtype=float)
    return total


def _beside_confirmed(table, frame):
    found = confirmed(frame)
    if found is not None:
        losses = whole_rows(found.losses)[[*INSTANCE, "kl_mean"]].drop_duplicates(INSTANCE)
        table = table.merge(losses, on=INSTANCE, how="left")
    return table.drop(columns="given_json")
