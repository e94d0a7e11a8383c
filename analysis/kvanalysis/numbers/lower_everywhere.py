"""Verdicts on claims of the form "this method loses less than that one", by one stated rule."""

from .paired import compare, lower_in_all
from .verdict import UNDECIDED, Verdict

LOWER_RULE = (
    "paired 95 % bootstrap interval over heads of the difference, at {places}: all below zero, holds; all"
    " above, does not hold; otherwise mixed"
)


def lower_everywhere(claim, source, pairs, places="every budget", measure="rel_err_out_mean"):
    """The Verdict on "first is lower than second"; `pairs` are (place, rows of first, rows of second).

    Rows are those of `load`'s table; a place without a head that both have, or with a single head (no
    interval), does not decide, and its text says so.
    """
    found = [(place, compare(first, second, measure)) for place, first, second in pairs]
    texts = [f"{place}: {'no head in common' if c is None else c.text()}" for place, c in found]
    deciding = [c for _, c in found if c is not None and c.n_units > 1]
    outcome = lower_in_all(deciding) if deciding else UNDECIDED
    return Verdict(claim, source, LOWER_RULE.format(places=places), outcome, "; ".join(texts))
