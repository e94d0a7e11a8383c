"""Error against budget, and a verdict on each claim in the configuration."""

from dataclasses import replace

from ...plots import pictures_of
from ...stats.claims import claims_judged
from ...stats.intervals import by_trace, used_rows
from ...stats.words import BAND_NOTE
from ..run import error_vs_budget


def data(run):
    return run.frame()


def draw(_run, frame):
    """The curves of each trace."""
    return [
        replace(picture, name=f"{trace}{picture.name}", caption=caption(rows))
        for trace, rows in by_trace(frame)
        for picture in pictures_of(rows, [error_vs_budget])
    ]


def claims(run, frame):
    """Verdicts on options.claims, see stats.claims."""
    return claims_judged(run, frame)


def caption(rows):
    """Says which mean is shown; and the time averages of caches whose size varies, since a budget is a
    peak."""
    sizes = (
        used_rows(rows).groupby(["label", "budget_tokens"])[["mean_kept_tokens", "peak_kept_tokens"]].mean()
    )
    swings = sizes[sizes["peak_kept_tokens"] - sizes["mean_kept_tokens"] > 1]
    text = f"rel_err_out_mean: a mean of ratios over query heads and rows. {BAND_NOTE}"
    if swings.empty:
        return text
    each = (
        f"{label} B={budget}: {row['mean_kept_tokens']:.0f} (peak {row['peak_kept_tokens']:.0f})"
        for (label, budget), row in swings.iterrows()
    )
    return f"{text} Time averages of tokens: {', '.join(each)}."
