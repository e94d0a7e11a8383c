"""Positions of an imported prompt that say that its rows are not the tokens of one whole sequence."""

from typing import Any

import numpy as np


def odd_positions(position_ids: Any) -> str | None:
    """Says how positions are unusual, and what to do about it; None for consecutive ones from 0."""
    positions = np.asarray(position_ids)
    if positions.ndim != 1 or not positions.size:
        return None
    steps = np.diff(positions.astype(np.int64))
    if back := _first(steps <= 0):
        return (
            f"do not rise at row {back} ({positions[back - 1]}, then {positions[back]}): rows of padding, or "
            "of a second sequence, count as tokens here. Cut them from q, k, v, token_ids and position_ids; "
            "give each sequence a file of its own"
        )
    if gap := _first(steps > 1):
        missing = int(positions[-1] - positions[0] + 1 - positions.size)
        return (
            f"jump at row {gap} from {positions[gap - 1]} to {positions[gap]}: {missing} tokens are missing, "
            "as in a cache that was cut. A replay knows only the tokens that it has: save all of them"
        )
    if positions[0] > 0:
        return (
            f"begin at {positions[0]}: earlier tokens are missing, as if only new ones were saved. A replay "
            "knows only the tokens that it has: save the rows of the prompt, too"
        )
    return None


def _first(where: np.ndarray) -> int:
    """The row at the end of the first marked step; 0 if there is none."""
    return int(where.argmax()) + 1 if where.any() else 0
