"""H2O Theorem 4.4: kept mass over the best mass, compared with 1 - 1/e. The theorem itself cannot be
tested."""

import math

import pandas as pd

from ...drawing.curve_axes import Axis
from ...drawing.curves import Sheet, curves_picture
from ...stats.families import has_values
from ...stats.intervals import head_points, used_rows
from ...stats.verdict import UNTESTABLE, Verdict
from ...stats.words import BAND_NOTE, replay_note

LEVEL = 1 - 1 / math.e
PANELS = {"mass_recall": "mean over rows", "mass_recall_min": "worst row"}


def data(run):
    """A point per layer and budget in each panel for which the results have the column."""
    rows, frames = run.frame(), []
    for measure, panel in PANELS.items():
        if has_values(rows, measure):
            points = head_points(rows, measure, ["layer", "budget_tokens"])
            frames.append(points.assign(panel=panel, label=[f"layer {layer}" for layer in points["layer"]]))
    return pd.concat(frames, ignore_index=True).rename(columns={"budget_tokens": "x"})


def draw(run, points):
    sheet = Sheet(
        title="Kept mass over the best mass of as many tokens",
        points=points,
        x=Axis("budget [tokens per kv head]", "budget"),
        y=Axis(
            "mass recall",
            limits=(0, 1.03),
            levels={f"1 - 1/e = {LEVEL:.3f}, of the theorem's form": LEVEL},
        ),
        note=f"{replay_note(run.frame())} Means over kv heads of a row mean, and of a row minimum."
        f" {BAND_NOTE}",
        caption="The theorem bounds a submodular objective with constants that the paper leaves open;"
        " the line shows its factor for trivial constants. It is a reference, not a bound on"
        " this quantity.",
    )
    return [curves_picture(sheet)]


def claims(run, _points):
    used = used_rows(run.frame())
    worst = has_values(used, "mass_recall_min")
    numbers = [
        f"B={budget}: mean {group['mass_recall'].mean():.3f},"
        f" {(group['mass_recall'] > LEVEL).mean():.0%} of heads above"
        + (f", worst row {group['mass_recall_min'].min():.3f}" if worst else "")
        for budget, group in used.groupby("budget_tokens")
    ]
    verdict = Verdict(
        claim="greedy eviction is near-optimal: at least (1 - a)(1 - 1/e) of the best, minus b",
        source="H2O Theorem 4.4",
        how="the constants a and b are unspecified and attention mass is modular, so no measurement can"
        " refute it; mass recall is compared with 1 - 1/e",
        outcome=UNTESTABLE,
        numbers="; ".join(numbers) + ("" if worst else "; row minima are not in these results"),
    )
    return [verdict]
