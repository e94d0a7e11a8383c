"""The measurements of `kvreplay confirm`, joined with the results that they belong to."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from kvbase import cells
from kvbase.cells import in_table

from ..errors import ResultsError
from .confirm_csv import CELLS, read_confirm_csv, read_confirm_layers_csv
from .results_csv import row_number

CONFIRM, LAYERS = "confirm.csv", "confirm_layers.csv"
INSTANCE = in_table(cells.INSTANCE)


@dataclass(frozen=True)
class Confirmed:
    """`losses`: the rows of confirm.csv; `layers`: the rows of confirm_layers.csv whose instance is in
    `losses`, empty without such a file. Both have `given_json`, and the `label` and `oracle` of the run."""

    losses: pd.DataFrame
    layers: pd.DataFrame


def confirmed(frame, whole=True):
    """The Confirmed for `load`'s table from the first of its folders; None if the closed loop did not run.

    Every row must belong to an instance of the table; otherwise ResultsError: it belongs to other results.
    With `whole=False` the table may hold the rows of some traces only: rows of other traces are left out.
    """
    for folder in frame.attrs.get("folders", ())[:1]:
        path = Path(folder) / CONFIRM
        losses = read_confirm_csv(path)
        if losses is not None and len(losses):
            layers = read_confirm_layers_csv(path.with_name(LAYERS))
            return _joined(frame, losses, layers, path, whole)
    return None


def whole_rows(losses):
    """The finished instances' rows over all rows after the prompt."""
    finished = losses[losses["status"] == "ok"]
    width = finished["distance_to"] - finished["distance_from"]
    return finished[width == width.groupby(finished["key"]).transform("max")]


def _joined(frame, losses, layers, path, whole):
    losses = losses.rename(columns={"given": "given_json"})
    if not whole:
        losses = losses[losses["trace_id"].isin(frame["trace_id"].unique())].reset_index(drop=True)
    known = frame.drop_duplicates(INSTANCE)[[*INSTANCE, "label", "oracle"]]
    together = losses.merge(known, on=INSTANCE, how="left", sort=False)
    _refuse_foreign(frame, together, path)
    _refuse_replaced(frame, together, path)
    if together.empty:
        return None
    together["oracle"] = together["oracle"].astype(bool)
    return Confirmed(together, _layers(together, layers))


def _layers(losses, layers):
    """Rows of unfinished instances are written to confirm_layers.csv first: they do not count yet."""
    labels = losses.drop_duplicates("key")[["key", "label", "oracle"]]
    if layers is None:
        return pd.DataFrame(columns=["key", "layer"])
    return layers.rename(columns={"given": "given_json"}).merge(labels, on="key", how="inner", sort=False)


def _refuse_foreign(frame, together, path):
    foreign = together["label"].isna()
    if not foreign.any():
        return
    row = together[foreign].iloc[0]
    held = sorted(frame["trace_id"].unique())
    why = (
        f"is from trace {row['trace_id'][:12]}, the results are from {', '.join(name[:12] for name in held)}"
        if row["trace_id"] not in held
        else f"is {_named(row)}, which results.csv lacks"
    )
    raise ResultsError(
        f"{path}: row {row_number(foreign)} {why}: it was confirmed from other results; move the file"
        f" away and run `kvreplay confirm {path.parent} --model M` again"
    )


def _refuse_replaced(frame, together, path):
    """Raises ResultsError for rows whose results were replaced later: they do not belong to the errors beside
    them."""
    if CELLS not in together:
        return
    keys = frame.groupby(INSTANCE, dropna=False)["key"].agg(cells_hash).rename("now").reset_index()
    now = together.merge(keys, on=INSTANCE, how="left", sort=False)["now"]
    replaced = (together[CELLS] != "") & (together[CELLS] != now)
    if replaced.any():
        row = together[replaced].iloc[0]
        raise ResultsError(
            f"{path}: row {row_number(replaced)} ({_named(row)}) was confirmed from results that have been"
            f" replaced since; run `kvreplay confirm {path.parent} --model M` again"
        )


def cells_hash(keys):
    """The hash that the closed loop writes."""
    return hashlib.sha256("\n".join(sorted(set(keys))).encode()).hexdigest()[:16]


def _named(row):
    parts = [row["method"], "" if row["given_json"] in ("", "{}") else row["given_json"]]
    parts += [f"{text}{row[name]}" for name, text in (("budget_tokens", "B="), ("seed", "seed "))
              if not pd.isna(row[name])]  # fmt: skip
    return " ".join([*filter(None, parts), f"on prompt {row['prompt']}"])
