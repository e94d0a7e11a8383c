"""Measures that may predict what a model loses: a number for each layer of an instance, less is better."""

from dataclasses import dataclass

RUN, MODEL, COMPRESSED = "the run", "the model", "the compressed model"


@dataclass(frozen=True)
class Measure:
    """`column` of results.csv or confirm_layers.csv; `from_one`: the measure is one minus it. `needs`: RUN
    (traces alone), MODEL (its output projection and residual stream), COMPRESSED (no prediction: it was
    measured in the run that it would predict)."""

    name: str
    words: str
    column: str
    needs: str = RUN
    from_one: bool = False

    def of(self, values):
        return 1 - values if self.from_one else values


MAIN = "rel_err_out_mean"
MEASURES = (
    Measure(MAIN, "mean relative error", MAIN),
    Measure("rel_err_out_p50", "median relative error", "rel_err_out_p50"),
    Measure("rel_err_out_p95", "95 % quantile of the relative error", "rel_err_out_p95"),
    Measure("rel_err_fro", "ratio of norms, last rows", "rel_err_fro"),
    Measure("cosine_distance", "cosine distance", "cosine_mean", from_one=True),
    Measure("rmse", "root mean square error", "rmse"),
    Measure("eps_spectral_mean", "ε spectral", "eps_spectral_mean"),
    Measure("missing_mass", "missing mass", "kept_mass_mean", from_one=True),
    Measure("partition_err_mean", "partition error", "partition_err_mean"),
    Measure("log_partition_err_mean", "partition error, logarithm", "log_partition_err_mean"),
    Measure("rel_err_quarter_1", "error of the first quarter of rows", "rel_err_quarter_1"),
    Measure("rel_err_quarter_4", "error of the last quarter of rows", "rel_err_quarter_4"),
    Measure("rel_err_set_mean", "error of the set alone", "rel_err_set_mean"),
    Measure("rel_err_prefix_mean", "error on the prompt’s tokens alone", "rel_err_prefix_mean"),
    Measure("rel_err_proj_mean", "error behind W_O over ‖W_O o‖", "rel_err_proj_mean", MODEL),
    Measure("rel_err_resid_mean", "error behind W_O over the residual stream", "rel_err_resid_mean", MODEL),
    Measure("rel_err_resid_late", "error over the residual stream, late rows", "rel_err_resid_late", MODEL),
    Measure("drift_mean", "drift of the residual stream", "drift_mean", COMPRESSED),
)
BY_NAME = {measure.name: measure for measure in MEASURES}
