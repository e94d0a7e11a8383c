"""Resamples of methods: a method's instances come together or not at all."""

import numpy as np

from .rank_correlation import Draws
from .stats import BOOTSTRAP_SEED, LEVEL, RESAMPLES

FEWEST_METHODS = 5  # below, percentiles of resampled methods say nothing


def method_draws(methods, resamples=RESAMPLES, seed=BOOTSTRAP_SEED):
    """Draws of n instances when methods are drawn with replacement; None below FEWEST_METHODS.

    `methods` [n]: the method of each instance. Its budgets, variants and prompts are no independent evidence
    on whether a measure predicts the loss, so they stay together. What is drawn depends on the number of
    methods and the seed alone: all measures share it.
    """
    names, own = np.unique(np.asarray(methods, dtype=str), return_inverse=True)
    if len(names) < FEWEST_METHODS:
        return None
    drawn = np.random.default_rng(seed).integers(0, len(names), (resamples, len(names)))
    counts = np.stack([np.bincount(draw, minlength=len(names)) for draw in drawn])
    return Draws(counts.astype(float), own)


def percentile_intervals(values, level=LEVEL):
    """(low, high) [...] over the last axis; resamples without a value (points of one rank) are left out."""
    tail = (1 - level) / 2
    found = np.full((2, *np.shape(values)[:-1]), np.nan)
    some = np.isfinite(values).any(axis=-1)
    found[:, some] = np.nanquantile(values[some], [tail, 1 - tail], axis=-1)
    return found
