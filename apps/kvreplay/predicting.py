"""kvreplay.predict: what compressed caches cost the model, in nats a token, from a trace with a gradient."""

from pathlib import Path
from typing import TYPE_CHECKING

from kvanalysis.data.load import load
from kvanalysis.errors import ResultsError
from kvanalysis.loss.predicted import predicted

from .errors import KvreplayError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict"]


def predict(folder: str | Path) -> "pd.DataFrame":
    """What each method is predicted to cost the model, and what it cost where kvconfirm ran it (`kl_mean`).

    folder: what `kvreplay run --save projections` wrote of a trace that was recorded with a gradient
    (`kvreplay.record(gradient=8)`, `kvdump --with-gradient`). A row for each method, its parameters, budget
    and prompt: `kl`, the divergence of the model's predictions in nats a token, with its 95 % interval
    `kl_low`, `kl_high`; `loss_first_order`, by which the loss of the recorded tokens departs from that;
    `kl_row`, `kl_block`, `kl_full`, `kl_head`, the second order with some of its pairs left out;
    `layers`, how many the trace holds: the loss is of their errors alone. Raises KvreplayError where the
    folder holds no projections.
    """
    try:
        return predicted(load(folder))
    except ResultsError as error:
        raise KvreplayError(str(error)) from None
