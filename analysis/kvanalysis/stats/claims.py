"""Claims of the form "A loses less than B", written in a figure's configuration and judged over layers.

options:
  claims:
    - claim: heavy hitters and recent tokens lose less than heavy hitters alone
      source: H2O Fig. 4
      lower: {method: h2o}            # which rows: the method, and parameters it was resolved to
      higher: {method: h2o_heavy}
      times: 0.5                      # lower < times * higher; default 1
      budgets: low                    # all (default), or low: the smaller half
      gap: grows                      # instead: higher - lower is larger at the least budget than at most
"""

from dataclasses import dataclass

import numpy as np

from ..errors import FigureError
from .intervals import LEVEL, mean_interval, unit_means, used_rows
from .paired import compare
from .verdict import RULE, UNDECIDED, Verdict, above, judge

KEYS = {"claim", "source", "lower", "higher", "times", "budgets", "gap"}
MEASURE = "rel_err_out_mean"
EACH = (
    f"paired {LEVEL:.0%} interval over layers of {{what}}, claimed below zero, at each of {{which}}: {RULE};"
    " numbers: both means, the interval, heads with less / equal / more error"
)
TREND = (
    f"paired {LEVEL:.0%} interval over layers of the gap at {{small}} minus that at {{large}}, claimed above"
    " zero"
)


@dataclass(frozen=True)
class Places:
    """Where a claim is judged: at each value of a column of the rows."""

    column: str = "budget_tokens"
    plural: str = "budgets"
    text: str = "B={:g}"


@dataclass(frozen=True)
class Claim:
    """`lower` and `higher` select rows; the claim is error(lower) < times * error(higher)."""

    claim: str
    source: str
    lower: dict
    higher: dict
    times: float = 1.0
    budgets: str = "all"
    gap: str = ""


def claims_judged(run, frame, places=Places()):
    """One Verdict for each of `figure.options.claims`; raises FigureError on a malformed one."""
    return [judged(claim, frame, places) for claim in read_claims(run)]


def read_claims(run):
    where = f"{run.config.path}: figure.options.claims"
    claims = []
    for item in run.option("claims", []):
        unknown = sorted(set(item) - KEYS)
        missing = [key for key in ("claim", "lower", "higher") if key not in item]
        if unknown or missing:
            raise FigureError(
                f"{where}: {'unknown key ' + unknown[0] if unknown else missing[0] + ' is missing'}"
            )
        claims.append(Claim(**{"source": run.config.paper} | item))
    return claims


def select(frame, wanted):
    """The rows of a method (`method`) whose parameters have the wanted values.

    A composed parameter is also met by its name: `row_format: int4` means {"name": "int4", ...}.
    """
    rows = frame[frame["method"] == wanted["method"]]
    others = {name: value for name, value in wanted.items() if name != "method"}
    fits = [
        all(_fits(params.get(name), value) for name, value in others.items()) for params in rows["params"]
    ]
    return rows[np.array(fits, dtype=bool)]


def _fits(value, wanted):
    return value == wanted or (isinstance(value, dict) and value.get("name") == wanted)


def judged(claim, frame, places=Places()):
    """The Verdict on one claim; "not decided" where the rows that it needs are missing."""
    low, high = select(frame, claim.lower), select(frame, claim.higher)
    if claim.gap:
        return _judge_trend(claim, low, high, places)
    high = high.assign(**{MEASURE: claim.times * high[MEASURE]})
    at = {x: compare(*_at(low, high, places, x)) for x in _values(low, high, claim.budgets, places)}
    found = {x: comparison for x, comparison in at.items() if comparison is not None}
    outcome = judge(comparison.interval for comparison in found.values())
    numbers = _numbers(claim, found, places)
    return Verdict(claim.claim, claim.source, _how(claim, places), outcome, numbers)


def _at(low, high, places, value):
    return [rows[rows[places.column] == value] for rows in (low, high)]


def _values(low, high, which, places):
    """Values of the column at which both have results."""
    used = [set(used_rows(rows)[places.column].dropna()) for rows in (low, high)]
    both = sorted(used[0] & used[1])
    return both[: (len(both) + 1) // 2] if which == "low" else both


def _how(claim, places):
    factor = "" if claim.times == 1 else f"{claim.times:g} "
    what = f"error({named(claim.lower)}) - {factor}error({named(claim.higher)})"
    half = "the smaller half of the " if claim.budgets == "low" else "the "
    return EACH.format(which=half + places.plural, what=what)


def named(wanted):
    """A selection in words."""
    return " ".join(
        [wanted["method"], *(f"{name}={value}" for name, value in wanted.items() if name != "method")]
    )


def _numbers(claim, found, places):
    if not found:
        return f"none of the {places.plural} has results of both"
    return "; ".join(
        f"{places.text.format(x)}: {c.first:.3g} against {c.second / claim.times:.3g}, [{c.low:+.2g},"
        f" {c.high:+.2g}], {c.wins}/{c.ties}/{c.losses}"
        for x, c in found.items()
    )


def _judge_trend(claim, low, high, places):
    gaps = {x: _gap(*_at(low, high, places, x)) for x in _values(low, high, "all", places)}
    if len(gaps) < 2:
        return Verdict(
            claim.claim, claim.source, "needs two values", UNDECIDED, f"fewer than two {places.plural}"
        )
    small, large = min(gaps), max(gaps)
    change, down, up = mean_interval((gaps[small] - gaps[large]).dropna())
    outcome = above([(down, up)])
    each = ", ".join(f"{places.text.format(x)}: {gap.mean():+.3g}" for x, gap in gaps.items())
    ends = {name: places.text.format(x) for name, x in (("small", small), ("large", large))}
    numbers = f"gaps {each}; change {change:+.2g} [{down:+.2g}, {up:+.2g}]"
    return Verdict(claim.claim, claim.source, TREND.format(**ends), outcome, numbers)


def _gap(low, high):
    means = [unit_means(used_rows(rows), [MEASURE])[MEASURE] for rows in (high, low)]
    return (means[0] - means[1]).dropna()
