"""What methods are predicted to cost the model at a share of the bytes: the size beside the ranking."""

from dataclasses import replace

import pandas as pd

from ..loss.predicted import Losses
from .reached import Question, Reached, reached

COLUMNS = {"kl": "nats", "kl_low": "nats_low", "kl_high": "nats_high"}
INSTANCE = ["trace_id", "prompt", "label", "budget_tokens", "seed"]


def nats_at(losses: Losses | None, rows: pd.DataFrame, asked: Question) -> pd.DataFrame:
    """Nats a token at the share of `asked`, with their 95 % interval, means over texts: a row for each label
    of `rows` that is predicted there, columns `nats`, `nats_low`, `nats_high`.

    `losses`: of the table, of all layers, whose `rows` compete; empty where they are None or say why not.
    """
    nothing = pd.DataFrame(columns=list(COLUMNS.values()), dtype=float)
    if losses is None or losses.why:
        return nothing
    size = [asked.size.held, asked.size.full]
    sums = rows.groupby(INSTANCE, dropna=False)[size].sum()
    if "budget_share" in rows:
        sums["budget_share"] = rows.groupby(INSTANCE, dropna=False)["budget_share"].first()
    # `reached` asks for units; an instance is one.
    table = losses.table.merge(sums.reset_index(), on=INSTANCE).assign(layer=0, kv_head=0)
    found = {}
    for label, own in table.groupby("label", sort=True):
        each = {to: reached(own, replace(asked, column=column)) for column, to in COLUMNS.items()}
        if all(isinstance(part, Reached) for part in each.values()):
            found[label] = {to: float(part.values.mean()) for to, part in each.items()}
    return pd.DataFrame.from_dict(found, orient="index", dtype=float) if found else nothing
