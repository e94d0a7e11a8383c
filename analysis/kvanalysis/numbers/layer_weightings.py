"""From a number for every layer to one for the model."""

import numpy as np

THIRDS = ("first third", "middle third", "last third")
EVERY_LAYER, LARGEST = "mean", "largest"
# The sum over layers orders instances as the mean does, so it is not among them.
WEIGHTINGS = (EVERY_LAYER, *THIRDS, "geometric mean", "root mean square", LARGEST)


def weighted(values, weighting):
    """[instances] of `values` [instances, layers], layers ascending; NaN where a layer has no value, or for a
    third of less than three layers."""
    values = np.asarray(values, dtype=float)
    if weighting in THIRDS:
        part = np.array_split(np.arange(values.shape[1]), 3)[THIRDS.index(weighting)]
        return values[:, part].mean(axis=1) if values.shape[1] >= 3 else np.full(len(values), np.nan)
    return _OF_ALL[weighting](values)


def _geometric(values):
    """Zero if a layer has no error at all."""
    with np.errstate(divide="ignore"):
        return np.exp(np.log(np.clip(values, 0, None)).mean(axis=1))


_OF_ALL = {
    EVERY_LAYER: lambda values: values.mean(axis=1),
    "geometric mean": _geometric,
    "root mean square": lambda values: np.sqrt((values**2).mean(axis=1)),
    LARGEST: lambda values: values.max(axis=1),
}
