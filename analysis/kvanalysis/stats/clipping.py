"""Numbers that row formats clip or read back as zero, as shares of the numbers that they code."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ..data.extras import extra
from ..data.labels import format_names
from ..data.row_formats import SOURCE, coded_parts
from .format import significant
from .intervals import used_rows

CLIPPED, FLUSHED = "row_clipped", "row_flushed"  # in the column `extras`
# Formats with one scale for all numbers, which the user gives, and the share of a layer's numbers that reads
# back as zero under an ill-chosen scale. Other formats follow the numbers: what they clip is their rule.
# On SmolLM2 fp8 at scale 1 flushes up to 1.6 % in a layer, and `scale: head`, which flushes less, has no
# lower KL; nvfp4 flushes 8 to 12 %.
SCALED = {"fp8_e4m3": 0.05, "fp8_e5m2": 0.05, "nvfp4": 0.25}
REMEDY = "choose another `scale`, or `scale: head`"


def coded_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """CLIPPED and FLUSHED of each row of `load`'s table; NaN where nothing was coded, or where a format does
    not count them."""
    return pd.DataFrame({name: extra(frame, name) for name in (CLIPPED, FLUSHED)}, index=frame.index)


def clipping_notes(frame: pd.DataFrame) -> list[str]:
    """A sentence for each row format with a fixed scale that does not suit the numbers of some layer."""
    used = used_rows(frame)
    notes = []
    for name, rows in used.groupby(format_names(used), sort=False):
        parts = coded_parts(rows["given"].iloc[0].get("row_format", SOURCE))
        if parts and all(_has_fixed_scale(part) for part in parts):
            layers = coded_shares(rows).groupby([rows["trace_id"], rows["layer"]]).mean()
            notes += _sentences(_with_scale(str(name)), layers, max(SCALED[part["name"]] for part in parts))
    return notes


def _has_fixed_scale(part: dict[str, Any]) -> bool:
    return part["name"] in SCALED and not isinstance(part.get("scale"), str)


def _with_scale(name: str) -> str:
    """The short name leaves the default out, but the reader must know it."""
    return name if "scale=" in name else f"{name} with scale 1"


def _sentences(name: str, layers: pd.DataFrame, flushes: float) -> Iterator[str]:
    clipped, flushed = layers[CLIPPED].dropna(), layers[FLUSHED].dropna()
    if len(clipped) and clipped.max() > 0:
        yield f"{name} clips {_most(clipped)}, the largest share of a layer: {REMEDY}"
    if len(flushed) and flushed.max() >= flushes:
        yield f"{name} turns {_most(flushed)} into zeros, the largest share of a layer: {REMEDY}"


def _most(shares: pd.Series) -> str:
    return f"{significant(100 * shares.max())} % of the numbers in layer {shares.idxmax()[1]}"
