"""Intervals of shares, such as that of correct answers."""

from __future__ import annotations

import math

Z = 1.96  # 95 %


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n trials (Wilson 1927), which does not shrink to a point at 0 of 10.

    For the mean of n scores between 0 and 1, which vary less than trials, it is wider than needed.
    """
    middle, half = share + Z**2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, (middle - half) / (1 + Z**2 / n)), min(1.0, (middle + half) / (1 + Z**2 / n))
