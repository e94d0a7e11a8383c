"""kvreplay.predict: a model's loss with a compressed cache in nats per token, predicted from a gradient."""

from pathlib import Path
from typing import TYPE_CHECKING

from kvanalysis.data.load import load
from kvanalysis.loss.predicted import predicted

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict"]


def predict(folder: str | Path) -> "pd.DataFrame":
    """Predict the loss that each method causes in the model, without running the model.

        table = kv.predict("out/sweep")
        table.sort_values("kl")[["method", "budget_tokens", "kl", "kl_low", "kl_high"]]

    folder: results of `kvreplay run --save projections` on a trace that was recorded with a gradient
        (`kvreplay.record(gradient=8)` or `kvreplay record --with-gradient`).

    Returns a row for each method with its parameters, budget and prompt:
        kl: divergence of the model's next-token predictions, in nats per token; kl_low, kl_high: its 95 %
            confidence interval.
        kl_mean: the divergence that `kvreplay confirm` measured, if it ran this method.
        loss_first_order: first-order change of the loss of the recorded tokens, of either sign.
        answer_distance: squared cosine distance at the rows that predict the prompt's answer, mean over rows,
            layers and query heads.
        answer_log_prob_full, answer_log_prob: log-probability of the prompt's answer in nats, with the full
            cache (from the trace) and predicted; answer_first_order: the first-order change of its log-odds;
            answer_probability: the predicted probability that the model says the answer. Empty for a prompt
            without an answer.
        kl_row, kl_block, kl_full, kl_head: the second order, each with other pairs of errors left out.
        layers: how many layers the trace holds. The prediction counts the errors of these layers only, so it
            is a lower bound if the model has more.
    Raises KvreplayError if the folder holds no projections.
    """
    return predicted(load(folder))
