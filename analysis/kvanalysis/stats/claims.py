"""Claims of the form "A has a lower error than B", written in a figure's configuration and judged over
layers.

options:
  claims:
    - claim: heavy hitters and recent tokens beat heavy hitters alone
      source: H2O Fig. 4
      lower: {method: h2o}            # selects rows by the method and its resolved parameters
      higher: {method: h2o_heavy}
      times: 0.5                      # lower < times * higher; default 1
      budgets: low                    # all (default), or low: only the smaller half
      gap: grows                      # instead: higher - lower falls from the smallest to the largest budget
      every: layer                    # instead: lower must be lower in each layer of each text
    - claim: 8-bit rows are free
      lower: {method: exact, row_format: fp8_e4m3}
      below: 0.01                     # instead of `higher`: a number
    - claim: the first layers must stay exact
      untestable: why errors of heads cannot decide it
      shown: {method: exact}          # rows whose errors are shown instead, by layer

Methods that take no budget are judged over all their rows at once.
"""

from dataclasses import dataclass

import numpy as np

from ..data.labels import named_values
from ..data.metrics import MAIN
from ..data.row_formats import same_row_format
from ..errors import FigureError
from .intervals import LEVEL, mean_interval, unit_means, used_rows
from .paired import compare
from .verdict import RULE, UNDECIDED, UNTESTABLE, Verdict, above, judge
from .within_layers import EVERY, errors_by_layer, in_every_layer

KEYS = {"claim", "source", "lower", "higher", "times", "budgets", "gap", "every", "below"}
KEYS_UNTESTABLE = {"claim", "source", "untestable", "shown"}
EACH = (
    f"paired {LEVEL:.0%} interval over layers of {{what}}, claimed below zero, at each of {{which}}: {RULE};"
    " numbers: both means, the interval, heads with less / equal / more error"
)
ONE_RULE = "holds if it lies wholly below, does not hold if it lies wholly above, else not decided"
ONCE = (
    f"paired {LEVEL:.0%} interval over layers of {{what}}, claimed below zero: {ONE_RULE}; numbers: both"
    " means, the interval, heads with less / equal / more error"
)
LINE = f"{LEVEL:.0%} interval over layers of {{what}}, claimed below {{line:g}}: {ONE_RULE}"
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
    """`lower` and `higher` select rows; the claim is error(lower) < times * error(higher), or < `below`. With
    `untestable`, the reason, it is not judged; `shown` selects the rows whose errors are shown with it."""

    claim: str
    source: str
    lower: dict | None = None
    higher: dict | None = None
    times: float = 1.0
    budgets: str = "all"
    gap: str = ""
    every: str = ""
    below: float | None = None
    untestable: str = ""
    shown: dict | None = None


def claims_judged(run, frame, places=Places()):
    """One Verdict for each of `figure.options.claims`; raises FigureError for a malformed claim."""
    return [judged(claim, frame, places) for claim in read_claims(run)]


def read_claims(run):
    where = f"{run.config.path}: figure.options.claims"
    claims = []
    for item in run.option("claims", []):
        known, needed = _keys(item)
        unknown = sorted(set(item) - known)
        missing = [key for key in needed if key not in item]
        if unknown or missing:
            raise FigureError(
                f"{where}: {'unknown key ' + unknown[0] if unknown else missing[0] + ' is missing'}"
            )
        claims.append(Claim(**{"source": run.config.paper} | item))
    return claims


def _keys(item):
    """(keys that a claim may have, keys that it needs)."""
    if "untestable" in item:
        return KEYS_UNTESTABLE, ("claim", "shown")
    return KEYS, ("claim", "lower", "below" if "below" in item else "higher")


def select(frame, wanted):
    """The rows of a method (`method`) whose parameters have the wanted values.

    A row format is written as for a method, with or without its defaults. Any other composed parameter also
    matches by its name: `scorer: snapkv` means {"name": "snapkv", ...}.
    """
    rows = frame[frame["method"] == wanted["method"]]
    others = {name: value for name, value in wanted.items() if name != "method"}
    fits = [
        all(_fits(name, params.get(name), value) for name, value in others.items())
        for params in rows["params"]
    ]
    return rows[np.array(fits, dtype=bool)]


def _fits(name, value, wanted):
    if name == "row_format" and value is not None:
        return same_row_format(value, wanted)
    return value == wanted or (isinstance(value, dict) and value.get("name") == wanted)


def judged(claim, frame, places=Places()):
    """The Verdict on one claim; "not decided" if rows that it needs are missing."""
    if claim.untestable:
        numbers = f"error({named(claim.shown)}): {errors_by_layer(select(frame, claim.shown), MAIN)}"
        return Verdict(claim.claim, claim.source, claim.untestable, UNTESTABLE, numbers)
    if claim.below is not None:
        return _judge_line(claim, select(frame, claim.lower))
    low, high = select(frame, claim.lower), select(frame, claim.higher)
    if claim.gap:
        return _judge_trend(claim, low, high, places)
    high = high.assign(**{MAIN: claim.times * high[MAIN]})
    if claim.every:
        outcome, numbers = in_every_layer(low, high, MAIN)
        return Verdict(claim.claim, claim.source, EVERY.format(what=_difference(claim)), outcome, numbers)
    at = {x: compare(*_at(low, high, places, x)) for x in _values(low, high, claim.budgets, places)}
    found = {x: comparison for x, comparison in at.items() if comparison is not None}
    outcome = judge(comparison.interval for comparison in found.values())
    numbers = _numbers(claim, found, places)
    return Verdict(claim.claim, claim.source, _how(claim, places, found), outcome, numbers)


def _judge_line(claim, rows):
    units = unit_means(used_rows(rows), [MAIN])[MAIN]
    mean, low, high = mean_interval(units)
    how = LINE.format(what=f"error({named(claim.lower)})", line=claim.below)
    below = f"{(units < claim.below).sum()} of {len(units)} heads below {claim.below:g}"
    numbers = f"{mean:.3g}, {_interval(low, high)}, {below}" if len(units) else "no results"
    return Verdict(claim.claim, claim.source, how, judge([(low, high)], claim.below), numbers)


def _at(low, high, places, value):
    if value is None:
        return [rows[rows[places.column].isna()] for rows in (low, high)]
    return [rows[rows[places.column] == value] for rows in (low, high)]


def _values(low, high, which, places):
    """Values of the column at which both have results; [None] if neither has a value there."""
    columns = [used_rows(rows)[places.column] for rows in (low, high)]
    if all(len(column) and column.isna().all() for column in columns):
        return [None]
    both = sorted(set(columns[0].dropna()) & set(columns[1].dropna()))
    return both[: (len(both) + 1) // 2] if which == "low" else both


def _how(claim, places, found):
    what = _difference(claim)
    if list(found) == [None]:
        return ONCE.format(what=what)
    half = "the smaller half of the " if claim.budgets == "low" else "the "
    return EACH.format(which=half + places.plural, what=what)


def _difference(claim):
    factor = "" if claim.times == 1 else f"{claim.times:g} "
    return f"error({named(claim.lower)}) - {factor}error({named(claim.higher)})"


def named(wanted):
    """A selection in words."""
    return " ".join([wanted["method"], *named_values(wanted, [name for name in wanted if name != "method"])])


def _numbers(claim, found, places):
    if not found:
        return f"none of the {places.plural} has results for both"
    return "; ".join(
        f"{_place(x, places)}{c.first:.3g} against {c.second / claim.times:.3g},"
        f" {_interval(c.low, c.high)}, {c.wins}/{c.ties}/{c.losses}"
        for x, c in found.items()
    )


def _place(value, places):
    return "" if value is None else f"{places.text.format(value)}: "


def _interval(low, high):
    return "too few layers for an interval" if np.isnan(low) else f"[{low:+.2g}, {high:+.2g}]"


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
    means = [unit_means(used_rows(rows), [MAIN])[MAIN] for rows in (high, low)]
    return (means[0] - means[1]).dropna()
