"""Measures to compare methods by: columns of results.csv in which less is better, or one minus a column."""

import pandas as pd

from ..data.metrics import MAIN, Metric, metrics_of
from ..errors import ConfigError
from ..stats.intervals import used_rows

# Methods are ranked by predicted nats if the results have them for every method. Otherwise the default is the
# column whose ranking agrees best with models' own losses (docs/ranking.md). --measure overrides it.
NATS = "nats"
NATS_WORDS = "loss predicted from the gradient in the trace"
DEFAULT = "cosine_distance_sq"
ERROR, COSINE, DISTANCE = "error", "cosine", "distance"
SHORT = {DISTANCE: DEFAULT, ERROR: MAIN, COSINE: "cosine_mean"}


def default_column(frame: pd.DataFrame) -> str:
    """The column that methods are ranked by without a gradient: DEFAULT, or MAIN if a finished row lacks it,
    as in an older table, so that every method has a number."""
    return DEFAULT if DEFAULT in frame and used_rows(frame)[DEFAULT].notna().all() else MAIN


def column_of(frame: pd.DataFrame, measure: str | None) -> str:
    """The column of a measure's name or short name; None: `default_column`. Raises ConfigError with the
    available names."""
    name = default_column(frame) if measure is None else SHORT.get(measure, measure)
    comparable = metrics_of(frame.attrs.get("meta", {}))
    known = [
        each for each in frame.select_dtypes("float") if each in comparable and frame[each].notna().any()
    ]
    if name in known:
        return name
    raise ConfigError(
        f"--measure {measure}: these results have no such measure; they have "
        f"{', '.join([NATS, *SHORT, *known])}"
    )


def metric_of(frame: pd.DataFrame, column: str) -> Metric:
    """The Metric of a column of `load`'s table that methods are compared by."""
    return metrics_of(frame.attrs.get("meta", {}))[column]


def words_of(frame: pd.DataFrame, measure: str) -> str:
    """A measure of `load`'s table in words."""
    return NATS_WORDS if measure == NATS else metric_of(frame, measure).words
