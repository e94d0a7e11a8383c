"""The measure that predicts the loss best, tested on texts that were not used to choose it, and layer by
layer."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..stats.ranks import percentile_intervals
from .correlations import eligible_measures, mean_without_nan, scope_correlations, scopes
from .measures import BY_NAME, EVERY_LAYER, LARGEST, MAIN, MODEL, THIRDS, TOGETHER, weighted

OF = (*THIRDS, LARGEST)  # weightings written "of layers", not "over layers"


@dataclass(frozen=True)
class Choice:
    """A measure, its weighting, and its values [instances]."""

    measure: str
    weighting: str
    values: np.ndarray

    @property
    def words(self):
        return measure_words(self.measure, self.weighting)

    @property
    def is_main(self):
        return (self.measure, self.weighting) == (MAIN, EVERY_LAYER)


def measure_words(measure, weighting):
    if weighting == TOGETHER:
        return f"{BY_NAME[measure].words}, all layers together"
    return f"{BY_NAME[measure].words}, {weighting} {'of' if weighting in OF else 'over'} layers"


def choice(instances, measure, weighting):
    """The Choice for a measure of the Instances."""
    if weighting == TOGETHER:
        return Choice(measure, weighting, instances.together[measure])
    return Choice(measure, weighting, weighted(instances.measures[measure], weighting))


def main_choice(instances):
    """The engine's main measure; None if the run lacks it."""
    return choice(instances, MAIN, EVERY_LAYER) if MAIN in instances.measures else None


def best_choice(instances, from_traces=False):
    """The Choice with the largest mean Spearman with the loss, without oracles; `from_traces`: only among
    measures that do not need the model. None if no text has enough instances."""
    scope = scopes(instances)[0]
    if not scope.rows.any():
        return None
    ranks = scope_correlations(instances, scope, resampled=False)
    mean = _rivals(ranks, mean_without_nan(ranks.rho[..., 0]), from_traces)
    return None if np.isneginf(mean).all() else choice(instances, *ranks.measures[int(mean.argmax())])


def held_out(ranks):
    """[(prompt, the measure and weighting that are best on the other texts, its Spearman on this text, the
    main measure's)] for the `Correlations` of a scope; texts without a value are left out."""
    rho, main = ranks.rho[..., 0], ranks.place(MAIN, EVERY_LAYER)
    if len(rho) < 2 or main is None:
        return []
    rows = []
    for i, prompt in enumerate(ranks.prompts):
        others = _rivals(ranks, mean_without_nan(np.delete(rho, i, axis=0)))
        first = int(others.argmax())
        if np.isfinite(others[first]) and np.isfinite(rho[i, first]):
            rows.append((prompt, ranks.measures[first], rho[i, first], rho[i, main]))
    return rows


def _rivals(ranks, rho, from_traces=False):
    """`rho` [measures], minus infinity for measures that cannot be best."""
    allowed = eligible_measures(ranks) & np.isfinite(rho)
    if from_traces:
        allowed &= np.array([BY_NAME[measure].needs != MODEL for measure, _ in ranks.measures])
    return np.where(allowed, rho, -np.inf)


def shown_choices(instances):
    """[Choice] for figures: the best measure, then the engine's main one if that is another."""
    best, main = best_choice(instances), main_choice(instances)
    if best is None:
        return []
    return [best] if best.is_main or main is None else [best, main]


def choice_correlations(instances, choices, resampled=True):
    """The Correlations of [Choice] with the loss over all instances except oracles."""
    measures = {(each.measure, each.weighting): each.values for each in choices}
    return scope_correlations(instances, scopes(instances)[0], resampled, measures)


FEWEST_LAYERS = 3  # fewer layers make no curve
COLUMNS = ["prompt", "measure", "layer", "spearman", "spearman_low", "spearman_high", "n_instances"]


def layer_correlations(instances, names):
    """DataFrame of COLUMNS for each text and layer, for the measures `names`, without oracles."""
    measures = {
        (name, layer): instances.measures[name][:, place]
        for name in names
        for place, layer in enumerate(instances.layers)
    }
    ranks = scope_correlations(instances, scopes(instances)[0], measures=measures)
    rho = ranks.rho[..., 0]
    low, high = (
        np.full((2, *rho.shape), np.nan)
        if ranks.drawn is None
        else percentile_intervals(ranks.drawn[:, :, 0])
    )
    rows = [
        (prompt, *measure, rho[i, j], low[i, j], high[i, j], ranks.used[i, j])
        for j, measure in enumerate(ranks.measures)
        for i, prompt in enumerate(ranks.prompts)
        if np.isfinite(rho[i, j])
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
