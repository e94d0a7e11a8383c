"""Two methods of one run, like with like: plain instances, one phase, equal budgets, the same heads."""

from ..stats.paired import compare
from ..stats.words import count

MOST_BUDGETS = 6  # whose numbers are printed; more are counted


def plain(frame, method):
    """Rows of the instance that stands for `method`: labelled by its name alone, or the only one."""
    rows = frame[frame["method"] == method]
    named = rows[rows["label"] == method]
    if len(named):
        return named
    return rows if rows["label"].nunique() == 1 else rows.iloc[:0]


def at_budgets(frame, first, second):
    """{budget: Comparison} of both methods' plain instances, or what keeps them from being compared."""
    rows = {name: plain(frame, name) for name in (first, second)}
    absent = [name for name, own in rows.items() if own.empty]
    if absent:
        return f"needs a plain {' and a plain '.join(absent)}"
    phases = {name: _phases(own) for name, own in rows.items()}
    if phases[first] != phases[second]:
        return (
            f"{first} runs as {'/'.join(phases[first])}, {second} as {'/'.join(phases[second])}:"
            " equal budgets are not equal sizes"
        )
    found = {}
    for budget in _shared_budgets(*rows.values()):
        comparison = compare(*(own[own["budget_tokens"] == budget] for own in rows.values()))
        if comparison and comparison.n_units > 1:
            found[budget] = comparison
    return found or f"{first} and {second} share no budget with results on two heads"


def _phases(rows):
    return sorted({str(params.get("phase", "not said")) for params in rows["params"]})


def _shared_budgets(first, second):
    """Budgets of both that evict something: below the prompt."""
    useful = [own[own["budget_tokens"] < own["n_prefill"]]["budget_tokens"] for own in (first, second)]
    return sorted(set(useful[0].dropna()) & set(useful[1].dropna()))


def decided(comparisons):
    """The rule in words."""
    return (
        f"Holds if the paired 95 % interval lies below zero in all {count(len(comparisons), 'comparison')},"
        " does not hold if above zero in all, else mixed."
    )


def numbers_text(first, second, found):
    """Every budget's means, difference with interval, and wins, as one line."""
    lines = [f"B={budget}: {_short(comparison)}" for budget, comparison in [*found.items()][:MOST_BUDGETS]]
    more = len(found) - len(lines)
    tail = [f"and {more} more budgets"] if more > 0 else []
    return f"{first} against {second}: " + ", ".join(lines + tail)


def _short(c):
    return f"{c.first:.3g} against {c.second:.3g} [{c.low:+.2g}, {c.high:+.2g}], {c.wins}/{c.ties}/{c.losses}"
