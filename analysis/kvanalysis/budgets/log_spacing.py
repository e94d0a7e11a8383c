"""Budgets on a logarithmic scale: whole tokens, evenly spaced in the ratio of neighbours."""

import math


def log_spaced(first, last, count):
    """`count` budgets from `first` to `last` whose neighbours have one ratio, rounded to whole tokens; fewer
    where rounding makes two equal. Ascending; `count` is 2 at least."""
    ratio = last / first
    return sorted({whole(first * ratio ** (i / (count - 1))) for i in range(count)})


def midpoint(low, high):
    """The whole budget next to sqrt(low * high) strictly between the two; None between neighbours."""
    if high - low < 2:
        return None
    return min(max(whole(math.sqrt(low * high)), low + 1), high - 1)


def whole(tokens):
    """Half a token counts as one."""
    return math.floor(tokens + 0.5)
