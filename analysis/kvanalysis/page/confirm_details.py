"""Exceptions, distances and selections: tables below the correlations in the page's section on the loss."""

import pandas as pd

from ..predict.answer_cells import EQUAL, accuracy_cells, predictor_cells, recommendation
from ..predict.answer_tests import answer_tests
from ..predict.answers import answer_correlations
from ..predict.cells import group_cells, group_words
from ..predict.exceptions import (
    LEAST_NATS,
    MARGIN,
    NOISES,
    SAME,
    by_distance,
    by_selection,
    exceptions,
    growth,
    hidden,
)
from ..stats.format import ABSENT, significant
from ..stats.words import count
from .confirm_findings import exception_words
from .html import Html, folded, html, paragraph, sortable_table

PAIRS_SHOWN = 15
ANSWERS_HOW = (
    "Rank correlation over methods and budgets with the share of wrong answers, both means over a task’s"
    " prompts; intervals resample methods. Tasks that the full model cannot do are left out. “No prediction”:"
    " measured in the compressed run."
)
RULE = (
    f"A pair at one budget of a text counts if the errors differ {MARGIN}-fold and the losses differ the"
    f" other way by more than {LEAST_NATS} nats and by {NOISES} standard errors of their difference, taken as"
    " √(2 (KL₁ + KL₂) / n) over n tokens. Where rows are quantised, the standard errors of the means over"
    " draws are added in quadrature."
)
PAIR_HEADER = ["text", "budget", "less error", "less loss", "its error", "other’s error", "ratio", "its loss",
               "other’s loss", "difference"]  # fmt: skip
SELECTION_HEADER = ["method", "budget", "recorded", "own", "difference", "its error", "over texts",
                    "texts"]  # fmt: skip


def heading(text):
    return Html(f"<h3>{html(text)}</h3>")


def exception_tables(instances, choices):
    """Words and a table for each Choice."""
    parts = [heading("Exceptions"), paragraph(RULE)]
    for each in choices:
        pairs = exceptions(instances, each.values)
        parts.append(paragraph(exception_words(instances, each)))
        if len(pairs):
            rows = [_pair(row) for row in pairs.head(PAIRS_SHOWN).itertuples()]
            parts.append(sortable_table(PAIR_HEADER, rows))
    return parts


def _pair(row):
    errors = (row.error_of_less_error, row.error_of_less_loss, row.error_ratio)
    losses = (row.loss_of_less_error, row.loss_of_less_loss, row.loss_difference)
    names = (row.less_error, row.less_loss)
    return [
        (row.prompt, row.prompt),
        _budget(row.budget_tokens),
        *((name, name) for name in names),
        *((significant(value), value) for value in errors),
        *map(_nats, losses),
    ]


def distances(instances):
    """Losses by distance behind the prompt at the middle budget; [] where there is one range alone."""
    losses_by_distance = by_distance(instances)
    if losses_by_distance is None:
        return []
    budget, table = losses_by_distance
    ranges = [name for name in table if name not in ("label", "family")]
    rows = [
        [(row["label"], row["label"]), (row["family"], row["family"]), *(_nats(row[name]) for name in ranges)]
        for _, row in table.iterrows()
    ]
    grown = growth(instances)
    grown = grown[grown["family"] != ""].itertuples()
    families = "; ".join(f"{row.family} {row.first:+.3f} to {row.last:+.3f}" for row in grown)
    return [
        heading("By distance behind the prompt"),
        paragraph(
            f"Mean loss increase over texts at B = {budget}, nats a token. From the first range to the"
            f" last, over all budgets: {families}."
        ),
        sortable_table(["method", "family", *(name.replace("_", " ") for name in ranges)], rows),
    ]


def retrieved(groups):
    """A table for each Group of prompts with an answer; [] if there are none."""
    parts = [heading("Does it still find the answer?")] if groups else []
    for group in groups:
        parts += [paragraph(group_words(group)), sortable_table(*group_cells(group))]
    return parts


def answered(rows):
    """What ranks methods as right answers do, and which differ significantly; [] without written answers."""
    table = answer_correlations(rows) if len(rows) else rows
    if table.empty:
        return []
    tests = answer_tests(rows)
    parts = [
        heading("Which number predicts wrong answers?"),
        paragraph(f"{ANSWERS_HOW} {recommendation(table)}"),
        sortable_table(*predictor_cells(table)),
        folded("Within equal budgets", sortable_table(*predictor_cells(table, EQUAL))),
    ]
    for group in dict.fromkeys(tests["group"]):
        parts.append(folded(f"{group}: which methods differ", sortable_table(*accuracy_cells(tests, group))))
    return parts


def two_selections(losses):
    """The effect of own choices on the loss; [] unless instances were confirmed with both selections."""
    table = by_selection(losses)
    if table.empty:
        return []
    mean, same, farthest = hidden(table)
    rows = [_selected(row) for row in table.itertuples()]
    budget = "" if pd.isna(farthest["budget_tokens"]) else f" at B = {farthest['budget_tokens']}"
    return [
        heading("Recorded choices and own choices"),
        paragraph(
            "Recorded: the tokens that a method kept on the full model’s keys and queries. Own: the tokens"
            " that it keeps when it chooses again in every layer from the values that the compressed model"
            f" computes. The prompt is computed exactly in both. Over {count(len(table), 'instance')} with"
            f" both, own choices change the loss increase by {mean:+.3f} nats a token on average; {same}"
            f" change by less than {SAME}; the largest change is that of {farthest['label']}{budget}, by"
            f" {farthest['difference']:+.3f}. Teacher forcing of the choices hides these differences. “Its"
            " error” is the standard error of a difference over draws of quantised rows."
        ),
        sortable_table(SELECTION_HEADER, rows),
    ]


def _selected(row):
    over = f"{row.smallest:+.3f} … {row.largest:+.3f}"
    losses = (row.recorded, row.own, row.difference)
    return [
        (row.label, row.label),
        _budget(row.budget_tokens),
        *map(_nats, losses),
        (f"{row.standard_error:.3f}", row.standard_error) if row.standard_error else (ABSENT, None),
        (over, row.smallest),
        (f"{row.n_texts}", row.n_texts),
    ]


def failures(losses):
    """Instances that the closed loop could not run, by reason."""
    failed = losses[losses["status"] != "ok"]
    if failed.empty:
        return []
    kinds = failed.groupby(["label", "error"]).size().items()
    texts = [f"{label}: {error or 'no message'} ({count(int(n), 'instance')})" for (label, error), n in kinds]
    return [paragraph(f"Not confirmed: {'; '.join(texts)}.")]


def _budget(value):
    return (ABSENT, None) if pd.isna(value) else (f"{value}", int(value))


def _nats(value):
    return (ABSENT, None) if pd.isna(value) else (f"{value:+.3f}", value)
