"""Projections of a replay in memory, from which losses are predicted."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


def named_projections(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """The engine's projections [heads, rows, samples] under their names in projections.h5."""
    every, drawn, has_answer = arrays["projections"], arrays["drawn"], arrays["answer"]
    named = {"a": every[..., :drawn]}
    if every.shape[-1] > drawn + has_answer:
        named["a_recorded"] = every[..., drawn]
    if has_answer:
        named["a_answer"] = every[..., -1]
    return named


class Projections:
    """Projections of cells by the cell's key, with the interface of kvanalysis.data.arrays.Arrays.

    It must not be changed: pandas copies `attrs` deeply with every selection, this class does not.
    """

    def __init__(self, cells: "dict[str, dict[str, np.ndarray]]"):
        self._cells = cells

    def __getitem__(self, key: str) -> dict[str, np.ndarray]:
        return self._cells[key]

    def each(self, keys: Iterable[str], names: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
        """The arrays of several cells, one after the other. `names`: arrays to return (default: all)."""
        for key in keys:
            yield {name: self._cells[key][name] for name in names or self._cells[key]}

    def __deepcopy__(self, _: Any) -> "Projections":
        return self
