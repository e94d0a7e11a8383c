"""How well the error of each single layer predicts the loss."""

import numpy as np
import pandas as pd

from .confirm_correlations import scope_correlations
from .confirm_scopes import scopes
from .method_draws import percentile_intervals

FEWEST_LAYERS = 3  # fewer are no curve
COLUMNS = ["prompt", "measure", "layer", "spearman", "spearman_low", "spearman_high", "n_instances"]


def layer_correlations(found, names):
    """DataFrame of COLUMNS: of each text and layer of `names` of measures, oracles left out."""
    measures = {
        (name, layer): found.measures[name][:, place]
        for name in names
        for place, layer in enumerate(found.layers)
    }
    told = scope_correlations(found, scopes(found)[0], measures=measures)
    rho = told.rho[..., 0]
    low, high = (
        np.full((2, *rho.shape), np.nan) if told.drawn is None else percentile_intervals(told.drawn[:, :, 0])
    )
    rows = [
        (prompt, *measure, rho[i, j], low[i, j], high[i, j], told.used[i, j])
        for j, measure in enumerate(told.measures)
        for i, prompt in enumerate(told.prompts)
        if np.isfinite(rho[i, j])
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
