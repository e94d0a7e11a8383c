"""Sentences on the closed loop's measurements, and a choice of texts if there are too many to show."""

import numpy as np
import pandas as pd

from ..stats.intervals import LEVEL
from ..stats.ranks import BOOTSTRAP_SEED, RESAMPLES, percentile_intervals
from ..stats.words import count
from .correlations import mean_without_nan

MOST_TEXTS = 6  # more texts get no panel or column each


def shown_texts(prompts, rho):
    """Indices into `prompts`, ascending; of more than MOST_TEXTS a part, evenly spaced from the text with the
    lowest correlation `rho` [prompts] to the text with the highest, so that the selection does not
    flatter."""
    if len(prompts) <= MOST_TEXTS:
        return list(range(len(prompts)))
    known = np.flatnonzero(np.isfinite(rho))
    order = known[np.argsort(rho[known], kind="stable")]
    places = np.linspace(0, len(order) - 1, min(MOST_TEXTS, len(order))).round().astype(int)
    return sorted(int(index) for index in order[np.unique(places)])


def shown_words(shown, total):
    """The sentence of a note; "" if all are shown."""
    if len(shown) == total:
        return ""
    return f"{len(shown)} of {total} texts, evenly spaced from the worst predicted to the best."


METHODS_NOTE = (
    f"Intervals: {LEVEL:.0%} bootstrap over methods (all budgets, variants and texts of a method together)"
    f" ({RESAMPLES} resamples, seed {BOOTSTRAP_SEED}); correlations are averaged over texts, never pooled."
)
CHOSEN = {
    "recorded": "the tokens that each method kept in the replay",
    "own": "the tokens that each method keeps when it chooses from the compressed model’s own keys and"
    " queries",
}


def confirmed_note(instances):
    """What was run, and over how many instances and texts."""
    table = instances.table
    trace, texts = str(table["trace_id"].iloc[0])[:12], len(instances.texts())
    counted = f"{count(len(table), 'instance')} of {count(table['method'].nunique(), 'method')}"
    return (
        f"The model itself over the recorded tokens of trace {trace}, {layers_words(instances)} attending"
        f" only to {CHOSEN[instances.selection]}: {counted} on {count(texts, 'text')},"
        f" {count(int(table['n_rows'].max()), 'token')} after the prompt."
    )


def layers_words(instances):
    layers = instances.layers
    if len(layers) == 1:
        return f"layer {layers[0]}"
    whole = layers == list(range(layers[0], layers[-1] + 1))
    return f"layers {layers[0]} to {layers[-1]}" if whole else f"layers {', '.join(map(str, layers))}"


def draws_words(instances):
    """How precise the losses of quantised rows are; "" if no rows are quantised."""
    table = instances.table
    errors, once = table["draw_error"][table["draw_error"] > 0], int(table["once"].sum())
    parts = []
    if len(errors):
        parts.append(
            f"{count(len(errors), 'instance')} with quantised rows: means over several draws of the"
            f" rounding, with a standard error of {errors.min():.3f} to {errors.max():.3f} nats."
        )
    if once:
        parts.append(
            f"{count(once, 'instance')} with quantised rows: one draw each, whose noise is unknown and not"
            " counted (use `kvreplay confirm --draws 5`)."
        )
    return " ".join(parts)


def same_words(instances):
    """Instances that count once because another one had equal losses."""
    budgets = {}
    for label, budget, first in instances.same:
        budgets.setdefault((label, first), []).append("" if pd.isna(budget) else f"{budget}")
    texts = [f"{label} at {', '.join(own)} did what {first} did" for (label, first), own in budgets.items()]
    return f"Counted once: {'; '.join(texts)}." if texts else ""


def correlation_text(ranks, place, number=0):
    """ "0.95 [0.91, 0.98] (manual 0.95, story 0.94)" for one measure of `Correlations`."""
    rho = ranks.rho[:, place, number]
    texts = texts_words(ranks.prompts, rho)
    mean = float(mean_without_nan(rho))
    if ranks.drawn is None:
        return f"{two(mean)} ({texts})"
    low, high = percentile_intervals(mean_without_nan(ranks.drawn[:, place, number]))
    return f"{with_interval(mean, low, high)} ({texts})"


def texts_words(prompts, rho):
    """Each text with its correlation, or the range of correlations if there are many."""
    known = [(prompt, value) for prompt, value in zip(prompts, rho, strict=True) if np.isfinite(value)]
    if len(known) > MOST_TEXTS:
        values = [value for _, value in known]
        return f"{len(known)} texts, {two(min(values))} to {two(max(values))}"
    return ", ".join(f"{prompt} {two(value)}" for prompt, value in known)


def two(value):
    """A correlation with two digits, never rounded up to a perfect one."""
    text = f"{value:.2f}"
    return f"{value:.3f}" if text in ("1.00", "-1.00") and abs(value) < 1 else text


def with_interval(value, low, high):
    return two(value) + ("" if np.isnan(low) else f" [{two(low)}, {two(high)}]")
