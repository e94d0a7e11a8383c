"""Measures that may predict a model's loss, and how their values over layers become one number."""

from dataclasses import dataclass

import numpy as np

RUN, GRADIENT, MODEL, COMPRESSED = "the run", "the gradient", "the model", "the compressed model"


@dataclass(frozen=True)
class Measure:
    """`column`: of results.csv or confirm_layers.csv; `from_one`: the measure is one minus it. `needs`: RUN
    (traces alone), GRADIENT (traces with one), MODEL (its output projection and residual stream), COMPRESSED
    (no prediction: measured in the run that it would predict). `unit`: unit of its values."""

    name: str
    words: str
    column: str
    needs: str = RUN
    from_one: bool = False
    unit: str = "1"

    def of(self, values):
        return 1 - values if self.from_one else values


MAIN = "rel_err_out_mean"
MEASURES = (
    Measure(MAIN, "mean relative error", MAIN),
    Measure("rel_err_out_p50", "median relative error", "rel_err_out_p50"),
    Measure("rel_err_out_p95", "95 % quantile of the relative error", "rel_err_out_p95"),
    Measure("rel_err_fro", "ratio of norms, last rows", "rel_err_fro"),
    Measure("cosine_distance", "cosine distance", "cosine_mean", from_one=True),
    Measure("cosine_distance_sq", "squared cosine distance", "cosine_distance_sq"),
    Measure("rmse", "root mean square error", "rmse", unit="value units"),
    Measure("eps_spectral_mean", "ε spectral", "eps_spectral_mean"),
    Measure("missing_mass", "missing mass", "kept_mass_mean", from_one=True),
    Measure("partition_err_mean", "partition error", "partition_err_mean"),
    Measure("log_partition_err_mean", "partition error, logarithm", "log_partition_err_mean"),
    Measure("rel_err_quarter_1", "error of the first quarter of rows", "rel_err_quarter_1"),
    Measure("rel_err_quarter_4", "error of the last quarter of rows", "rel_err_quarter_4"),
    Measure("rel_err_set_mean", "error of the kept set alone", "rel_err_set_mean"),
    Measure("rel_err_prefix_mean", "error on the prompt’s tokens alone", "rel_err_prefix_mean"),
    Measure("kl_head_mean", "nats of single heads", "kl_head_mean", GRADIENT, unit="nats/token"),
    Measure("rel_err_proj_mean", "error behind W_O over ‖W_O o‖", "rel_err_proj_mean", MODEL),
    Measure("rel_err_resid_mean", "error behind W_O over the residual stream", "rel_err_resid_mean", MODEL),
    Measure("rel_err_resid_late", "error over the residual stream, late rows", "rel_err_resid_late", MODEL),
    Measure("drift_mean", "drift of the residual stream", "drift_mean", COMPRESSED),
)
# A measure with one number for all layers: a column of `loss.predicted`.
PREDICTED = Measure("predicted_kl", "predicted KL", "kl", GRADIENT, unit="nats/token")
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
