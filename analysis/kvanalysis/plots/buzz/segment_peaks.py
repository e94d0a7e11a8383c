"""BUZZ Fig. 2: accumulated scores over the tokens of one head, and the token that each segment keeps."""

from functools import partial

import numpy as np
import pandas as pd

from ...drawing.log_ticks import plain_log, subs_for
from ...drawing.saving import Picture
from ...drawing.style import COLOURS, COLUMN_WIDTH, PAGE_WIDTH, finish, new_figure
from ...errors import ResultsError
from ...stats.clustering import scores_of
from ...stats.intervals import used_rows
from ...stats.verdict import FAILS, HOLDS, MIXED, Verdict
from ...stats.words import replay_note

SEGMENTS_SHOWN = 12
ROUNDING = 1e-5  # the survey and the replay sum the same scores in different precision
HEIGHT = {COLUMN_WIDTH: 1.5, PAGE_WIDTH: 1.9}  # inches


def data(run):
    """A row per prompt token of each head of buzz: a cluster step over the prompt, and a run with
    output.save: [kept]."""
    rows = _rows(run)
    scores, kept = scores_of(run.cluster()), run.arrays("kept")
    heads = [segments_of(row, scores, kept.lists(row["key"])[0]) for _, row in rows.iterrows()]
    heads = [head for head in heads if head is not None]
    if not heads:
        raise ResultsError(
            "no head has both a cell of buzz and accumulated scores of as many tokens as its prompt"
        )
    return pd.concat(heads, ignore_index=True)


def draw(run, table):
    """The picture of one head: options.layer (default: the middle one) and options.kv_head (default: the
    first)."""
    shown = the_head(run, table)
    title = "Scores, segments and kept tokens"
    return [Picture(title, shown, partial(_figure, shown, replay_note(_rows(run))), caption(shown))]


def claims(_run, table):
    return [one_each(table), winners(table)]


def _rows(run):
    rows = used_rows(run.frame())
    return rows[rows["method"] == "buzz"]


def segments_of(row, scores, kept):
    """One line per prompt token of a head: A, zone (sink, segment, recent), segment number, kept. None if the
    scores do not belong to the prompt."""
    params, prompt = row["params"], int(row["n_prefill"])
    a = scores.get((row["prompt"], row["layer"], row["kv_head"]))
    if a is None or len(a) != prompt:
        return None
    tokens = np.arange(prompt)
    sinks, recent, stride = params["sinks"], params["window"], params["stride"]
    zone = np.select([tokens < sinks, tokens >= prompt - recent], ["sink", "recent"], "segment")
    number = np.where(zone == "segment", (tokens - sinks) // stride, -1)
    place = {"prompt": row["prompt"], "layer": row["layer"], "kv_head": row["kv_head"]}
    return pd.DataFrame(
        place | {"token": tokens, "score": a, "zone": zone, "segment": number, "kept": np.isin(tokens, kept)}
    )


def the_head(run, table):
    layers = sorted(table["layer"].unique())
    layer = run.config.options.get("layer", layers[len(layers) // 2])
    head = run.config.options.get("kv_head", table["kv_head"].min())
    rows = table[(table["layer"] == layer) & (table["kv_head"] == head)]
    if rows.empty:
        raise ResultsError(f"no head {head} of layer {layer}; layers: {', '.join(map(str, layers))}")
    return rows[rows["prompt"] == rows["prompt"].iloc[0]].reset_index(drop=True)


def _figure(head, compared, width):
    """Draws all tokens above, and some segments of the middle below."""
    figure = new_figure(width)
    whole, part = figure.subplots(2, 1)
    middle = head[head["zone"] == "segment"]["segment"]
    first = max(0, (middle.max() - SEGMENTS_SHOWN) // 2) if len(middle) else 0
    near = head[head["segment"].between(first, first + SEGMENTS_SHOWN - 1)]
    _points(whole, head, 4 if width > COLUMN_WIDTH else 2)
    handles = _points(part, near, 12)
    part.vlines(near["token"], near["score"].min(), near["score"], color="#CCCCCC", linewidth=0.5, zorder=1)
    for start in near.groupby("segment")["token"].min():
        part.axvline(start - 0.5, color="#999999", linewidth=0.6, zorder=0)
    whole.set_title("all tokens of the prompt")
    part.set_title(f"{SEGMENTS_SHOWN} segments of the middle; lines: their bounds")
    part.set_xlabel("token")
    for axes in (whole, part):
        axes.set_ylabel("score A")
    note = f"Layer {head['layer'].iloc[0]}, kv head {head['kv_head'].iloc[0]}. {compared}"
    finish(figure, handles, ["leaves", "kept"], note, 2.35 * HEIGHT[width], hspace=0.35, top=0.24)
    return figure


def _points(axes, rows, size):
    """Draws kept and evicted tokens with different shapes and colours."""
    kept, gone = rows[rows["kept"]], rows[~rows["kept"]]
    left = axes.scatter(
        gone["token"], gone["score"], s=size, marker="x", color=COLOURS[1], linewidths=0.6, zorder=2
    )
    held = axes.scatter(
        kept["token"], kept["score"], s=size, marker="o", color=COLOURS[0], linewidths=0, zorder=3
    )
    axes.set_yscale("log")
    plain_log(axes.yaxis, subs_for(rows["score"]))
    return [left, held]


def caption(head):
    counts = head[head["kept"]]["zone"].value_counts()
    mass = head.loc[head["kept"], "score"].sum() / head["score"].sum()
    return (
        f"Of {len(head)} prompt tokens the cut keeps {counts.get('sink', 0)} sinks,"
        f" {counts.get('segment', 0)} winners of segments and {counts.get('recent', 0)} recent ones; they"
        f" received {mass:.0%} of the prompt's attention. A: attention from all prompt rows and query heads"
        " of the group."
    )


def _segments(table):
    return table[table["segment"] >= 0].groupby(["prompt", "layer", "kv_head", "segment"])


def one_each(table):
    counts = _segments(table)["kept"].sum()
    return Verdict(
        claim="one pass keeps exactly one token of every segment, and all sinks and recent tokens",
        source="BUZZ Fig. 2, algorithm 1",
        how="counted in the kept set after the prompt, every segment of every head",
        outcome=HOLDS if (counts == 1).all() and table.loc[table["segment"] < 0, "kept"].all() else FAILS,
        numbers=f"{(counts == 1).sum()} of {len(counts)} segments",
    )


def winners(table):
    """Verdict; scores are compared up to the rounding of two orders of summation."""
    largest = _segments(table)["score"].transform("max")
    kept = table.loc[largest.index[table.loc[largest.index, "kept"]]]
    hits = (kept["score"] >= (1 - ROUNDING) * largest[kept.index]).sum()
    return Verdict(
        claim="the kept token has the segment's largest accumulated score",
        source="BUZZ Fig. 2, algorithm 1",
        how=f"against independently accumulated scores, ties within {ROUNDING:g}; fails below 99 % of"
        " the segments",
        outcome=HOLDS if hits == len(kept) else FAILS if hits < 0.99 * len(kept) else MIXED,
        numbers=f"{hits} of {len(kept)} segments",
    )
