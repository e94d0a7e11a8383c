"""Measures that may predict a model's loss, and how their values over layers become one number."""

from dataclasses import dataclass

import numpy as np

from ..data.metrics import MAIN, known_metrics, loss

RUN, GRADIENT, MODEL, COMPRESSED = "the run", "the gradient", "the model", "the compressed model"


@dataclass(frozen=True)
class Measure:
    """A column that may predict the loss.

    `column`: of results.csv or confirm_layers.csv. `needs`: RUN (traces alone), GRADIENT (traces with one),
    MODEL (its output projection and residual stream), COMPRESSED (no prediction: measured in the run that it
    would predict). `unit`: unit of its values. `said`: its words, if the engine does not measure it.
    """

    name: str
    column: str
    needs: str = RUN
    unit: str = "1"
    said: str = ""

    @property
    def words(self):
        return self.said or known_metrics()[self.column].words

    def of(self, values):
        """Values of the column, turned so that less is better."""
        return values if self.said else loss(values, known_metrics()[self.column].better)


# Names of measures that are one minus their column.
FROM_ONE = {"cosine_distance": "cosine_mean", "missing_mass": "kept_mass_mean"}
OF_RUN = (
    *(MAIN, "rel_err_out_p50", "rel_err_out_p95", "rel_err_fro", "cosine_distance", "cosine_distance_sq"),
    *("rmse", "eps_spectral_mean", "missing_mass", "partition_err_mean", "log_partition_err_mean"),
    *("rel_err_quarter_1", "rel_err_quarter_4", "rel_err_set_mean", "rel_err_prefix_mean"),
)
UNITS = {"rmse": "value units"}
OF_MODEL = {
    "rel_err_proj_mean": "error behind W_O over ‖W_O o‖",
    "rel_err_resid_mean": "error behind W_O over the residual stream",
    "rel_err_resid_late": "error over the residual stream, late rows",
}
MEASURES = (
    *(Measure(name, FROM_ONE.get(name, name), unit=UNITS.get(name, "1")) for name in OF_RUN),
    Measure("kl_head_mean", "kl_head_mean", GRADIENT, "nats/token"),
    *(Measure(name, name, MODEL, said=words) for name, words in OF_MODEL.items()),
    Measure("drift_mean", "drift_mean", COMPRESSED, said="drift of the residual stream"),
)
# A measure with one number for all layers: a column of `loss.predicted`.
PREDICTED = Measure("predicted_kl", "kl", GRADIENT, "nats/token", "predicted KL")
BY_NAME = {measure.name: measure for measure in (*MEASURES, PREDICTED)}


THIRDS = ("first third", "middle third", "last third")
EVERY_LAYER, LARGEST = "mean", "largest"
TOGETHER = "together"  # all layers in one number
# The sum over layers ranks instances like the mean, so it is left out.
WEIGHTINGS = (EVERY_LAYER, *THIRDS, "geometric mean", "root mean square", LARGEST)


def weighted(values, weighting):
    """[instances] from `values` [instances, layers], layers ascending; NaN if a layer has no value, or for a
    third of fewer than three layers."""
    values = np.asarray(values, dtype=float)
    if weighting in THIRDS:
        part = np.array_split(np.arange(values.shape[1]), 3)[THIRDS.index(weighting)]
        return values[:, part].mean(axis=1) if values.shape[1] >= 3 else np.full(len(values), np.nan)
    return _OF_ALL[weighting](values)


def _geometric(values):
    """The geometric mean; zero if a layer has no error at all."""
    with np.errstate(divide="ignore"):
        return np.exp(np.log(np.clip(values, 0, None)).mean(axis=1))


_OF_ALL = {
    EVERY_LAYER: lambda values: values.mean(axis=1),
    "geometric mean": _geometric,
    "root mean square": lambda values: np.sqrt((values**2).mean(axis=1)),
    LARGEST: lambda values: values.max(axis=1),
}
