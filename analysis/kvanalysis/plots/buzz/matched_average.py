"""BUZZ Fig. 5: methods at equal time averages of the cache, with BUZZ's own peak."""

import pandas as pd

from ...drawing.curve_axes import ERROR, Axis
from ...drawing.curves import Sheet, curves_picture
from ...errors import ResultsError
from ...stats.claims import Places, claims_judged
from ...stats.intervals import head_points, used_rows
from ...stats.words import BAND_NOTE, replay_note

NEAR = 0.06  # relative distance to the wanted time average


def data(run):
    """(matched rows, points, labels without a near budget). Step `run` has the other methods, step
    `swinging` one whose size varies, at many budgets. options.shares: shares of the prompt."""
    matched, missed = matched_rows(run.frame("run"), run.frame("swinging"), run.option("shares"))
    points = head_points(matched, "rel_err_out_mean", ["label", "share"])
    sizes = matched.groupby(["label", "share"])[["mean_kept_tokens", "peak_kept_tokens"]].mean()
    points = points.join(sizes, on=["label", "share"]).rename(columns={"share": "x"}).assign(panel="")
    return matched, points.assign(x=100 * points["x"]), missed


def draw(_run, found):
    matched, points, missed = found
    ticks = {x: f"{x:.0f}" for x in set(points["x"])}
    sheet = Sheet(
        title="Error at equal time averages",
        points=points,
        x=Axis("time average of the cache [% of the prompt]", "budget", ticks=ticks),
        y=Axis(ERROR, "error"),
        note=f"{replay_note(matched)} {BAND_NOTE}",
        caption=caption(points, missed),
    )
    return [curves_picture(sheet)]


def claims(run, found):
    """Verdicts on options.claims (see stats.claims), at each share."""
    return claims_judged(run, found[0], Places("share", "shares", "{:.0%}"))


def matched_rows(fixed, swinging, shares):
    """(rows, missed): for each share the rows whose time average is nearest to share * prompt, with a column
    `share`; `missed` names labels without a budget near to it."""
    parts, missed = [], []
    for frame in (fixed, swinging):
        for (_, _, label), rows in used_rows(frame).groupby(["trace_id", "prompt", "label"], sort=True):
            means = rows.groupby("budget_tokens")["mean_kept_tokens"].mean()
            for share in shares:
                target = share * float(rows["n_prefill"].iloc[0])
                budget = (means - target).abs().idxmin()
                if abs(means[budget] - target) <= NEAR * target:
                    parts.append(rows[rows["budget_tokens"] == budget].assign(share=share))
                else:
                    missed.append(
                        f"{label} at {share:.0%} (nearest {means[budget]:.0f} of {target:.0f} tokens)"
                    )
    if not parts:
        raise ResultsError(f"no time average comes within {NEAR:.0%} of the shares: {', '.join(missed)}")
    return pd.concat(parts, ignore_index=True), missed


def caption(points, missed):
    texts = []
    for label, rows in points.groupby("label", sort=True):
        if (rows["peak_kept_tokens"] - rows["mean_kept_tokens"]).abs().max() > 1:
            pairs = ", ".join(
                f"{row['x']:.0f} %: {row['mean_kept_tokens']:.0f} (peak {row['peak_kept_tokens']:.0f})"
                for _, row in rows.sort_values("x").iterrows()
            )
            texts.append(f"{label}, time average of tokens and peak: {pairs}")
    if missed:
        texts.append(f"Left out, no budget within {NEAR:.0%}: {', '.join(missed)}")
    steady = "All other caches are always full, so their peak is their average."
    return ". ".join([*texts, steady]) + " Memory must be allocated for the peak."
