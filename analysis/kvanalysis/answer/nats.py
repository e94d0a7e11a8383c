"""The loss that methods are predicted to cost the model at a share of the bytes."""

from dataclasses import replace

import numpy as np
import pandas as pd

from ..data.metrics import LESS
from ..data.shares import with_common_budgets
from ..errors import ConfigError
from ..loss.predicted import REMEDY, Losses
from .measures import NATS
from .reached import Question, Reached, Unreached, reached

COLUMNS = {"kl": "nats", "kl_low": "nats_low", "kl_high": "nats_high"}
INSTANCE = ["trace_id", "prompt", "label", "budget_tokens", "seed"]


def nats_at(losses: Losses | None, rows: pd.DataFrame, asked: Question) -> pd.DataFrame:
    """Nats a token at the share in `asked`, with their 95 % interval, means over texts. The table has a row
    for each label of `rows` that is predicted there, columns `nats`, `nats_low`, `nats_high` (NaN if a trace
    has none).

    `losses`: the losses of the table over all layers, whose `rows` compete. Empty if they are None or say why
    not.
    """
    nothing = pd.DataFrame(columns=list(COLUMNS.values()), dtype=float)
    if losses is None or losses.why:
        return nothing
    size, rows = [asked.size.held, asked.size.full], with_common_budgets(rows)
    sums = rows.groupby(INSTANCE, dropna=False)[size].sum()
    if "budget_share" in rows:
        sums["budget_share"] = rows.groupby(INSTANCE, dropna=False)["budget_share"].first()
    # `reached` expects units; here an instance is one unit.
    table = losses.table.merge(sums.reset_index(), on=INSTANCE).assign(layer=0, kv_head=0)
    found = {}
    for label, own in table.groupby("label", sort=True):
        each = {
            to: reached(own, replace(asked, column=column, better=LESS)) for column, to in COLUMNS.items()
        }
        if isinstance(each["nats"], Reached):
            found[label] = {to: _mean(part) for to, part in each.items()}
    return pd.DataFrame.from_dict(found, orient="index", dtype=float) if found else nothing


def _mean(found: Reached | Unreached) -> float:
    return float(found.values.mean()) if isinstance(found, Reached) else np.nan


def ranked_by_nats(
    measure: str | None, predicted: pd.DataFrame, labels: list[str], losses: Losses | None
) -> bool:
    """Whether `labels` are ranked by nats: the user asked for it, or named no measure and every label has
    nats with an interval. Nats have no interval if the trace lacks masked runs; the second order of a few
    layers then orders methods no better than distances do (docs/ranking.md). Raises ConfigError if the user
    asked for nats and there are none."""
    known = predicted["nats"].reindex(labels).notna()
    certain = predicted["nats_low"].reindex(labels).notna()
    if measure == NATS and labels and not known.any():
        why = losses.why if losses and losses.why else f"no loss is predicted for these rows: {REMEDY}"
        raise ConfigError(f"--measure {NATS}: {why}")
    return measure == NATS or (measure is None and len(labels) > 0 and bool(certain.all()))
