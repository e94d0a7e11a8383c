"""Measures to compare methods by: columns of results.csv in which less is better, or one minus a column."""

import re

import pandas as pd

from ..errors import ConfigError

MAIN = "rel_err_out_mean"
# Methods are ranked by predicted nats if the results have them for every method. Otherwise the default is the
# column whose ranking agrees best with models' own losses (docs/ranking.md). --measure overrides it.
NATS = "nats"
DEFAULT = "cosine_distance_sq"
ERROR, COSINE, DISTANCE = "error", "cosine", "distance"
SHORT = {DISTANCE: DEFAULT, ERROR: MAIN, COSINE: "cosine_mean"}
# Larger is better: methods are compared by one minus these columns.
FROM_ONE = {
    "cosine_mean": "cosine distance",
    "kept_mass_mean": "missing mass",
    "mass_recall": "missed mass of the best tokens",
    "index_recall": "missed share of the best tokens",
}
WORDS = {
    MAIN: "mean relative error of the attention output",
    DEFAULT: "squared cosine distance of the attention output",
    NATS: "loss predicted from the gradient in the trace",
    "rel_err_out_p95": "95 % quantile of the relative error",
    **FROM_ONE,
}
COMPARABLE = re.compile(r"(rel_err|eps|partition_err|log_partition_err)_\w+|cosine_distance_sq|rmse")


def column_of(frame: pd.DataFrame, measure: str | None) -> str:
    """The column of a measure's name or short name. None: DEFAULT, or the main measure if an older table
    lacks DEFAULT. Raises ConfigError with the available names."""
    if measure is None:
        measure = DEFAULT if DEFAULT in frame and frame[DEFAULT].notna().any() else MAIN
    name = SHORT.get(measure, measure)
    known = [each for each in frame.select_dtypes("float") if each in FROM_ONE or COMPARABLE.fullmatch(each)]
    if name in known and frame[name].notna().any():
        return name
    there = ", ".join([NATS, *SHORT, *(each for each in known if frame[each].notna().any())])
    raise ConfigError(f"--measure {measure}: these results have no such measure; they have {there}")


def words_of(column: str) -> str:
    """The measure in words."""
    return WORDS.get(column, column)


def loss(values: pd.Series, column: str) -> pd.Series:
    """The measure, turned so that less is better."""
    return 1 - values if column in FROM_ONE else values
