"""BUZZ Fig. 5: methods at equal time averages of the cache; BUZZ's own peak stands beside it."""

import pandas as pd

from ..claims import Places, judge_all
from ..curve_axes import ERROR, Axis
from ..curves import Sheet, draw_sheet, head_points
from ..drawn import BAND_NOTE, Plot, replay_note
from ..stats import used_rows


def draw(context):
    """figure.kind matched_average: step `run` holds the other methods, step `swinging` one whose size swings,
    at many budgets. options.shares: shares of the prompt; options.claims as kvanalysis.claims says."""
    matched = matched_rows(context.frame("run"), context.frame("swinging"), context.option("shares"))
    points = head_points(matched, "rel_err_out_mean", ["label", "share"])
    sizes = matched.groupby(["label", "share"])[["mean_kept_tokens", "peak_kept_tokens"]].mean()
    points = points.join(sizes, on=["label", "share"]).rename(columns={"share": "x"}).assign(panel="")
    points["x"] = 100 * points["x"]
    sheet = Sheet(
        title="Error at equal time averages",
        points=points,
        x=Axis(
            "time average of the cache [% of the prompt]",
            "budget",
            ticks={x: f"{x:.0f}" for x in set(points["x"])},
        ),
        y=Axis(ERROR, "error"),
        note=f"{replay_note(matched)} {BAND_NOTE}",
        caption=caption(points),
    )
    verdicts = judge_all(context, matched, Places("share", "shares", "{:.0%}"))
    return Plot([draw_sheet(sheet, context.stem())], verdicts)


def matched_rows(fixed, swinging, shares):
    """For each share the rows whose time average is nearest to share * prompt, with the column `share`."""
    parts = []
    for frame in (fixed, swinging):
        for _, rows in used_rows(frame).groupby(["trace_id", "prompt", "label"], sort=True):
            means = rows.groupby("budget_tokens")["mean_kept_tokens"].mean()
            prompt = float(rows["n_prefill"].iloc[0])
            for share in shares:
                budget = (means - share * prompt).abs().idxmin()
                parts.append(rows[rows["budget_tokens"] == budget].assign(share=share))
    return pd.concat(parts, ignore_index=True)


def caption(points):
    texts = []
    for label, rows in points.groupby("label", sort=True):
        if (rows["peak_kept_tokens"] - rows["mean_kept_tokens"]).abs().max() > 1:
            pairs = ", ".join(
                f"{row['x']:.0f} %: {row['mean_kept_tokens']:.0f} (peak {row['peak_kept_tokens']:.0f})"
                for _, row in rows.sort_values("x").iterrows()
            )
            texts.append(f"{label}, time average of tokens and peak: {pairs}")
    steady = "All other caches are full all the time, so their peak is their average."
    return ". ".join([*texts, steady]) + " Memory must be allocated for the peak."
