"""Shares of the cache, and layers, as people write them."""

import math

import pandas as pd
from kvbase.selections import layers_in

from ..errors import ConfigError


def shares_in(text: str | float) -> list[float]:
    """Shares of the full cache's bytes, in (0, 1], in order: 0.2, "20%", "10%,20%". Raises ConfigError."""
    return [_share(word.strip()) for word in str(text).split(",")]


def _share(word: str) -> float:
    percent = word.endswith("%")
    try:
        value = float(word.removesuffix("%"))
    except ValueError:
        value = math.nan
    share = value / 100 if percent else value
    if 0 < share <= 1:
        return share
    if 1 < value <= 100:
        raise ConfigError(f"--at {word}: is above 100 %. Write --at {word}% for {word} %")
    raise ConfigError(f"--at {word}: write a share of the full cache's bytes, such as 20% or 0.2")


def of_layers(frame: pd.DataFrame, layers: str | list[int] | None) -> pd.DataFrame:
    """The rows of these layers ("all" or None: every row). Raises ConfigError if one has no results."""
    if layers is None:
        return frame
    return frame[frame["layer"].isin(layers_in(layers, frame["layer"].unique(), "--layers"))]
