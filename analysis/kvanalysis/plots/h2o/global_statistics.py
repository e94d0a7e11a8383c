"""H2O Fig. 2d: heavy hitters by local scores, compared with scores over the whole text, including the
future."""

import numpy as np
import pandas as pd

from ...drawing.curve_axes import ERROR, Axis
from ...drawing.curves import Sheet, curves_picture
from ...errors import ResultsError
from ...stats.claims import claims_judged, select
from ...stats.intervals import UNIT, head_points, mean_interval, over_units, used_rows
from ...stats.verdict import RULE, Verdict, above
from ...stats.words import BAND_NOTE, replay_note

LABELS = {
    "local scores": {"method": "h2o", "variant": "real_drop", "score_rows": "full"},
    "local scores, decode rows only": {"method": "h2o", "variant": "real_drop", "score_rows": "decode_only"},
    "global scores (sees the future, full cache)": {"method": "h2o", "variant": "oracle_global"},
    "recent tokens only": {"method": "local"},
}
LOCAL, _, GLOBAL, _ = LABELS
CHANCE = "as many tokens drawn at random"


def data(run):
    """(rows of h2o, its variant oracle_global and local, overlaps of their kept tokens); needs output.save:
    [kept]."""
    frame = run.frame()
    rows = pd.concat([select(frame, wanted).assign(label=label) for label, wanted in LABELS.items()])
    return rows, overlaps_of(run.arrays("kept"), used_rows(rows))


def draw(_run, found):
    rows, overlaps = found
    return [errors(rows), overlap(rows, overlaps)]


def claims(run, found):
    return [*claims_judged(run, run.frame()), overlap_verdict(found[1])]


def errors(rows):
    points = head_points(rows, "rel_err_out_mean", ["label", "budget_tokens"])
    points = points.rename(columns={"budget_tokens": "x"}).assign(panel="")
    points = in_order(points)
    sheet = Sheet(
        title="Error with local and with global scores",
        points=points,
        x=Axis("budget [tokens per kv head]", "budget"),
        y=Axis(ERROR, "error"),
        note=f"{replay_note(rows)} {BAND_NOTE}",
        labels=(*LABELS, CHANCE),
        caption="Global scores sum the attention of all rows, later ones included, and hide all other tokens;"
        " no cache can do that. Mean of ratios over heads.",
    )
    return curves_picture(sheet, "error")


def in_order(points):
    order = [*LABELS, CHANCE]
    return points.sort_values("label", key=lambda names: names.map(order.index), kind="stable")


def attended(arrays, key):
    """Tokens that the last scored step attends to: C_t, including the newest."""
    cell = arrays[key]
    if "attended_off" in cell:
        return arrays.lists(key, "attended")[-1]
    lists = arrays.lists(key)
    return np.append(lists[-2], lists[-1][-1]) if len(lists) > 1 else lists[-1]


def jaccard(a, b):
    """|a and b| / |a or b|; 1 for two empty sets (docs/measures.md)."""
    together = len(set(a) | set(b))
    return len(set(a) & set(b)) / together if together else 1.0


def overlaps_of(arrays, rows):
    """One row per unit, budget and label except global: overlap with the global set in the last step.

    `beyond` leaves out the recent tokens, which both keep by rule. `chance` is the expected overlap of two
    random sets of these sizes among the older tokens.
    """
    units = [*UNIT, "budget_tokens"]
    table = []
    for place, group in rows.groupby(units, sort=True):
        keys = group.drop_duplicates("label").set_index("label")["key"]
        if GLOBAL not in keys:
            continue
        found = attended(arrays, keys[GLOBAL])
        n = int(group["n_tokens"].iloc[0])
        recent = recent_of(group)
        for label in keys.index.drop(GLOBAL):
            mine = attended(arrays, keys[label])
            old = [set(x[x < n - 1 - recent]) for x in (mine, found)]
            values = {
                "overlap": jaccard(mine, found),
                "beyond": jaccard(*old),
                "chance": chance(*old, n - 1 - recent),
            }
            table.append(dict(zip(units, place, strict=True)) | {"label": label} | values)
    if not table:
        raise ResultsError("no cell of h2o's variant oracle_global has a kept set to compare with")
    return pd.DataFrame(table)


def recent_of(group):
    return max((params.get("recent", 0) for params in group["params"] if "heavy" in params), default=0)


def chance(a, b, tokens):
    """Expected intersection over expected union of two random sets of these sizes among `tokens`."""
    both = len(a) * len(b) / tokens if tokens else 0
    either = len(a) + len(b) - both
    return both / either if either else 0.0


def overlap(rows, overlaps):
    frames = []
    for what, panel in (("overlap", "all attended tokens"), ("beyond", "without the recent window")):
        part = overlaps[overlaps["label"] != "recent tokens only"] if what == "beyond" else overlaps
        for (label, budget), group in part.groupby(["label", "budget_tokens"], sort=True):
            mean, low, high = mean_interval(over_units(group, what))
            frames.append({"panel": panel, "label": label, "x": budget, "y": mean, "low": low, "high": high})
    for budget, group in overlaps[overlaps["label"] == LOCAL].groupby("budget_tokens"):
        frames.append(
            {"panel": "without the recent window", "label": CHANCE, "x": budget, "y": group["chance"].mean()}
        )
    points = in_order(pd.DataFrame(frames))
    points = points.sort_values("panel", key=lambda names: names != "all attended tokens", kind="stable")
    sheet = Sheet(
        title="Overlap with the tokens of global scores",
        points=points.reset_index(drop=True),
        x=Axis("budget [tokens per kv head]", "budget"),
        y=Axis("overlap (Jaccard)", limits=(0, 1.03)),
        note=f"{replay_note(rows)} Sets of the last step. {BAND_NOTE}",
        labels=(*LABELS, CHANCE),
        caption="Overlap of the tokens attended to in the last step with the tokens of global scores. Both"
        " keep the same recent tokens by rule, so the second panel leaves these out.",
    )
    return curves_picture(sheet, "overlap")


def overlap_verdict(overlaps):
    rows = overlaps[overlaps["label"] == LOCAL]
    texts, intervals = [], []
    for budget, group in rows.groupby("budget_tokens"):
        excess, low, high = mean_interval(over_units(group, "beyond") - over_units(group, "chance"))
        intervals.append((low, high))
        texts.append(
            f"B={budget}: {group['beyond'].mean():.2f}, by chance {group['chance'].mean():.2f}"
            f" ({excess:+.2f} [{low:+.2f}, {high:+.2f}])"
        )
    return Verdict(
        claim="local scores find the heavy hitters of the whole text",
        source="H2O Fig. 2d",
        how="overlap of the heavy tokens (without the recent window) minus that of random sets, claimed"
        f" above zero, at every budget: {RULE}",
        outcome=above(intervals),
        numbers="; ".join(texts),
    )
