"""BUZZ Fig. 6: the share of the exact attention to planted spans that the cache holds, by their place."""

import pandas as pd

from ...data.extras import extra
from ...drawing.curve_axes import Axis
from ...drawing.curves import Sheet, curves_picture
from ...errors import ResultsError
from ...stats.claims import select
from ...stats.intervals import head_points, mean_interval, unit_means, used_rows
from ...stats.verdict import Verdict, above, judge
from ...stats.words import BAND_NOTE, replay_note

SPAN = "needle_mass_{}"


def data(run):
    """(rows with a column for each span, points) from a run with replay.needles; options.places: `at` of the
    spans, in order."""
    places = run.option("places")
    rows = with_spans(run.frame(), places)
    return rows, points_of(rows, places)


def draw(run, found):
    rows, points = found
    ticks = {100 * at: f"{100 * at:g}" for at in run.option("places")}
    sheet = Sheet(
        title="Mass on planted spans",
        points=points,
        x=Axis("place of the span in the prompt [%]", ticks=ticks),
        y=Axis("needle mass", limits=(0, 1.03)),
        note=f"{replay_note(rows)} Exact mass of the span's tokens in the cache, divided by their full mass."
        f" {BAND_NOTE}",
        caption=caption(rows),
    )
    return [curves_picture(sheet)]


def claims(run, found):
    return [span_verdict(found[0], run.option("places"), item) for item in run.option("claims", [])]


def with_spans(frame, places):
    """`frame` with a column for each span's mass, from `extras`; raises ResultsError if none has it."""
    names = [SPAN.format(i + 1) for i in range(len(places))]
    found = frame.assign(**{name: extra(frame, name) for name in names})
    if found[names].isna().all().any():
        raise ResultsError(f"no row has {names[0]} in extras: set replay.needles with {len(places)} places")
    return found


def points_of(rows, places):
    parts = []
    for i, at in enumerate(places):
        points = head_points(rows, SPAN.format(i + 1), ["budget_tokens", "label"])
        parts.append(points.assign(x=100 * at, panel=[f"B = {b}" for b in points["budget_tokens"]]))
    points = pd.concat(parts, ignore_index=True)
    return points.sort_values(["budget_tokens", "label", "x"]).reset_index(drop=True)


def caption(rows):
    errors = used_rows(rows).groupby(["budget_tokens", "label"])["rel_err_out_mean"].mean()
    texts = [f"B = {budget} {label} {error:.3g}" for (budget, label), error in errors.items()]
    return (
        "The spans are ordinary text: nothing makes later tokens attend to them, so this is the mass that the"
        f" model gives them anyway. Mean relative error of all rows: {', '.join(texts)}."
    )


def span_verdict(rows, places, item):
    """`{claim, select, from, to, at_least}`: the mass at place `to` is at least `at_least` times that at
    place `from` (or `below`: less than)."""
    masses = [
        unit_means(used_rows(select(rows, item["select"])), [SPAN.format(places.index(at) + 1)])
        for at in (item["from"], item["to"])
    ]
    first, second = (table.iloc[:, 0] for table in masses)
    factor = item.get("at_least", item.get("below"))
    margin, low, high = mean_interval((second - factor * first).dropna())
    sign, rule = ("above", above) if "at_least" in item else ("below", judge)
    return Verdict(
        claim=item["claim"],
        source=item.get("source", "BUZZ Fig. 6"),
        how="paired head by head, budgets averaged: 95 % interval over layers of mass at"
        f" {item['to']:.0%} - {factor:g} mass at {item['from']:.0%} {sign} zero",
        outcome=rule([(low, high)]),
        numbers=f"{first.mean():.3f} at {item['from']:.0%}, {second.mean():.3f} at {item['to']:.0%};"
        f" difference {margin:+.2g} [{low:+.2g}, {high:+.2g}]",
    )
