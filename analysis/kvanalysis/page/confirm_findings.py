"""Sentences on how well the offline numbers predict the model's loss, made from the numbers."""

import numpy as np
import pandas as pd

from ..predict.best import best_choice, held_out, measure_words
from ..predict.correlations import ALL, EQUAL_BUDGET, FAMILY_WORDS, MEAN, WITH_SINK
from ..predict.exceptions import (
    MARGIN,
    count_significant_pairs,
    exceptional_labels,
    exceptions,
    spread_over_texts,
    wide_pairs,
)
from ..predict.instances import LOSS
from ..predict.measures import BY_NAME, COMPRESSED, EVERY_LAYER, MAIN, MODEL, THIRDS
from ..predict.words import MOST_TEXTS, two, with_interval
from ..stats.format import significant
from ..stats.words import count

NAMED = 3  # a sentence names at most so many exceptional methods on each side
NARROWER = {EQUAL_BUDGET: "Among methods of one budget", WITH_SINK: "Among methods that hold the first token"}


def findings(table, instances, ranks, best, main):
    """[sentence] about one trace. `table`: its `correlations`; `ranks`: the Correlations of all its
    instances, not resampled; `best`, `main`: Choices, `main` None if the run lacks it."""
    parts = [
        _best(table, best),
        _from_traces(table, instances, best),
        _from_model(table, best),
        _gain(table, best),
        _held_out(ranks),
        *(_narrower(table, best, main, scope) for scope in NARROWER),
        _families(table, best),
        _layers(table),
        _pairs(instances, best),
        _sizes(instances, best),
    ]
    return [part for part in parts if part]


def _row(table, scope, measure, weighting):
    """The row of the mean over texts, target loss; None if there is none."""
    rows = table[(table["scope"] == scope) & (table["target"] == LOSS) & (table["prompt"] == MEAN)]
    rows = rows[(rows["measure"] == measure) & (rows["weighting"] == weighting)]
    return rows.iloc[0] if len(rows) else None


def _of(table, scope, each):
    return _row(table, scope, each.measure, each.weighting)


def _rho(row):
    return with_interval(row["spearman"], row["spearman_low"], row["spearman_high"])


def _best(table, best):
    row = _of(table, ALL, best)
    rivals = table[(table["scope"] == ALL) & (table["target"] == LOSS) & (table["prompt"] == MEAN)]
    rivals = rivals[(rivals["needs"] != COMPRESSED) & (rivals["n_instances"] == row["n_instances"])]
    share = row["first_share"]
    first = "" if pd.isna(share) else f", first in {share:.0%} of the resamples"
    texts, instances, methods = (int(row[name]) for name in ("n_texts", "n_instances", "n_methods"))
    return (
        f"Among {len(rivals)} combinations of measure and layers, {best.words}, ranks instances most like the"
        f" loss: rank correlation {_rho(row)}{first}, over {count(texts, 'text')} with"
        f" {count(instances, 'instance')} of {count(methods, 'method')}. The best of many looks better"
        " than it is."
    )


def _from_traces(table, instances, best):
    """The best measure that needs only traces, if the best of all needs the model."""
    other = best_choice(instances, from_traces=True)
    if BY_NAME[best.measure].needs != MODEL or other is None:
        return ""
    rho = _rho(_of(table, ALL, other))
    return f"It needs the model; among measures that need only traces, {other.words}, is best with {rho}."


def _from_model(table, best):
    """The best measure that needs the model, and the best of the compressed run itself (no prediction)."""
    parts = []
    for needs, words in (
        (MODEL, "Among measures that need the model"),
        (COMPRESSED, "For comparison (not a prediction)"),
    ):
        rows = table[(table["scope"] == ALL) & (table["target"] == LOSS) & (table["prompt"] == MEAN)]
        rows = rows[rows["needs"] == needs]
        if len(rows) and needs != BY_NAME[best.measure].needs:
            first = rows.iloc[0]
            parts.append(f"{words}: {measure_words(first['measure'], first['weighting'])}, {_rho(first)}.")
    return " ".join(parts)


def _gain(table, best):
    row, main = _of(table, ALL, best), _row(table, ALL, MAIN, EVERY_LAYER)
    if main is None or best.is_main or pd.isna(row["gain"]):
        return ""
    low, high = row["gain_low"], row["gain_high"]
    sure = "excludes" if low > 0 or high < 0 else "includes"
    interval = "" if np.isnan(low) else f" [{low:+.2f}, {high:+.2f}], paired; the interval {sure} zero"
    return (
        f"The engine’s main measure ({measure_words(MAIN, EVERY_LAYER)}) reaches {_rho(main)}: the difference"
        f" is {row['gain']:+.2f}{interval}."
    )


def _held_out(ranks):
    found = held_out(ranks)
    if len(found) > MOST_TEXTS:
        rho, main = (np.array([row[place] for row in found]) for place in (2, 3))
        return (
            f"For each of {len(found)} texts, the measure that is best on the other texts reaches"
            f" {two(rho.mean())} on average, {two(rho.min())} to {two(rho.max())} (main measure"
            f" {two(main.mean())} on average)."
        )
    texts = [
        f"{prompt} {two(rho)} by {measure_words(*measure)} (main measure {two(main)})"
        for prompt, measure, rho, main in found
    ]
    return f"On each text, the measure that is best on the others: {'; '.join(texts)}." if texts else ""


def _narrower(table, best, main, scope):
    row = _of(table, scope, best)
    other = None if main is None or best.is_main else _of(table, scope, main)
    if row is None:
        return ""
    rest = "" if other is None else f", the main measure {_rho(other)}"
    return f"{NARROWER[scope]} the best measure reaches {_rho(row)}{rest}."


def _families(table, best):
    rows = [(words, _of(table, family, best)) for family, words in FAMILY_WORDS.items()]
    texts = [
        f"{words} {_rho(row)} ({count(int(row['n_methods']), 'method')})"
        for words, row in rows
        if row is not None
    ]
    return f"Within a family: {', '.join(texts)}." if texts else ""


def _layers(table):
    rows = [(third, _row(table, ALL, MAIN, third)) for third in THIRDS]
    if any(row is None for _, row in rows):
        return ""
    return f"The main measure by layers: {', '.join(f'{third} {_rho(row)}' for third, row in rows)}."


def _pairs(instances, best):
    wide = wide_pairs(instances, best.values)
    apart, wrong = count_significant_pairs(wide), len(exceptions(instances, best.values))
    if not apart:
        return ""
    return (
        f"By the best measure, {count(len(wide), 'pair')} at one budget have errors {MARGIN}-fold apart. In"
        f" {apart} of them the losses differ beyond noise, in {wrong} of these ({wrong / apart:.0%}) in the"
        " opposite direction."
    )


def _sizes(instances, best):
    losses, errors, compared = spread_over_texts(instances, best.values)
    if not compared:
        return ""
    return (
        "The size of the loss is another question than the order: an instance’s loss is"
        f" {losses:.1f} times as large on one text as on another (median of {compared}), while its error"
        f" differs by a factor of {errors:.1f}. An error alone does not give a loss in nats."
    )


def exception_words(instances, each):
    """Methods whose loss a Choice predicts badly, with numbers."""
    pairs = exceptions(instances, each.values)
    if pairs.empty:
        return f"By {each.words}: no pair at one budget has errors {MARGIN}-fold apart and opposite losses."
    named = exceptional_labels(pairs)
    texts = [
        f"{row.label} loses {side} than predicted (in {count(row.pairs, 'pair')}, {count(row.texts, 'text')})"
        for side in ("less", "more")
        for row in named[named["side"] == side].head(NAMED).itertuples()
    ]
    first = pairs.iloc[0]
    budget = "" if pd.isna(first["budget_tokens"]) else f" at B = {first['budget_tokens']}"
    return (
        f"By {each.words}, {count(len(pairs), 'pair')} at one budget have errors {MARGIN}-fold apart and"
        f" losses the other way round: {'; '.join(texts)}. The widest: on {first['prompt']}{budget},"
        f" {first['less_error']} has the lower error, {significant(first['error_of_less_error'])} against"
        f" {significant(first['error_of_less_loss'])} of {first['less_loss']}, but the higher loss,"
        f" {first['loss_of_less_error']:.3f} against {first['loss_of_less_loss']:.3f} nats a token."
    )
