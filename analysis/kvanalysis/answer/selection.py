"""What a question is about: shares of the cache, and layers, as people write them."""

import math
import re

import pandas as pd

from ..errors import UserError


def shares_in(text: str | float) -> list[float]:
    """Shares of the full cache's bytes, in (0, 1], in order: 0.2, "20%", "10%,20%". Raises UserError."""
    return [_share(word.strip()) for word in str(text).split(",")]


def _share(word: str) -> float:
    percent = word.endswith("%")
    try:
        value = float(word.removesuffix("%"))
    except ValueError:
        value = math.nan
    share = value / 100 if percent else value
    if not 0 < share <= 1:
        meant = f"; {word} %? write {word}%" if 1 < value <= 100 and not percent else ""
        raise UserError(f"--at {word}: write a share of the full cache's bytes, as 20% or 0.2{meant}")
    return share


def layers_in(text: str) -> list[int]:
    """Layers, ascending: "7", "0,7,15-29". Raises UserError."""
    layers = set()
    for word in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", word)
        if not ends or (ends[2] and int(ends[2]) < int(ends[1])):
            raise UserError(f"--layers {text}: write layers as 7 or 15-29, with commas between them")
        layers |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return sorted(layers)


def of_layers(frame: pd.DataFrame, layers: list[int] | None) -> pd.DataFrame:
    """The rows of these layers, all for None. Raises UserError where none has results."""
    if layers is None:
        return frame
    rows = frame[frame["layer"].isin(layers)]
    if rows.empty:
        there = ", ".join(str(layer) for layer in sorted(frame["layer"].unique()))
        raise UserError(f"--layers: none of them has results; layers with results are {there}")
    return rows


def layer_words(layers) -> str:
    """Layers as people write them: 0, 7, 15-29."""
    runs: list[list[int]] = []
    for layer in sorted(int(each) for each in layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
