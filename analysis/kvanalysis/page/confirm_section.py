"""The section of a run's page on the model's own loss, where `kvreplay confirm` has run."""

from ..data.confirmed import confirmed
from ..predict.best import main_choice, shown_choices
from ..predict.cells import correlation_cells, measure_terms, scope_cells, target_cells
from ..predict.correlations import ALL, FAMILY_WORDS, MEAN, correlations, scope_correlations, scopes
from ..predict.instances import LOSS, TARGETS
from ..predict.measures import EVERY_LAYER
from ..predict.tables import known_traces
from ..predict.words import METHODS_NOTE, confirmed_note, draws_words, same_words
from ..stats.words import count
from .confirm_details import (
    answered,
    distances,
    exception_tables,
    failures,
    heading,
    retrieved,
    two_selections,
)
from .confirm_findings import findings
from .html import folded, note, paragraph, sortable_table

TITLE = "Does the offline error predict the loss?"
HOW = (
    "The model ran once more over the recorded tokens for each instance (a method, its parameters, a"
    " budget, a text). In every layer it attended to the tokens that the method kept, so errors travel"
    " through the layers. Correlations are rank correlations. Gain: the difference from the main measure in"
    " the same resamples. First: how often a measure ranked first in them. “Needs the model” means that a"
    " measure also needs the model’s output projection and residual stream. The drift of the residual stream"
    " is measured in the compressed run itself and predicts nothing. Oracles see the future: they only count"
    " in the figure and in the scope “with oracles”."
)


def confirm_section(frame, losses=None):
    """Parts of the section; [] if the closed loop has not run. `losses`: the table's predicted losses, if
    known. Raises ResultsError for rows that do not belong to the run."""
    confirmation = confirmed(frame)
    if confirmation is None:
        return []
    traces = known_traces(frame, losses)
    parts = [paragraph(f"{HOW} {METHODS_NOTE}")] if traces else []
    for each in traces:
        parts += [heading(f"trace {each.trace[:12]}")] if len(traces) > 1 else []
        parts += [*_of_trace(each), *retrieved(each.retrieved), *answered(each.answers)]
    return [*parts, *two_selections(confirmation.losses), *failures(confirmation.losses)]


def _of_trace(each):
    instances = each.instances
    about = [
        confirmed_note(instances),
        draws_words(instances),
        same_words(instances),
        _elsewhere(instances),
        _agreement(instances),
    ]
    choices = shown_choices(instances)
    if not choices:
        about.append("Too few instances per text for a rank correlation.")
        return [paragraph(" ".join(filter(None, about)))]
    table = correlations(instances, each.sinks)
    ranks = scope_correlations(instances, scopes(instances)[0], resampled=False)
    main = main_choice(instances)
    return [
        paragraph(" ".join(filter(None, about))),
        note(
            "How well the offline numbers predict the loss here",
            findings(table, instances, ranks, choices[0], main),
        ),
        *_measures(table, instances, choices),
        *_scopes(table, choices),
        *_targets(table, choices),
        *exception_tables(instances, choices),
        *distances(instances),
    ]


def _elsewhere(instances):
    if not instances.elsewhere:
        return ""
    return (
        f"{count(instances.elsewhere, 'more instance')} with another selection or other layers are left out."
    )


def _agreement(instances):
    if not instances.deviation >= 0:
        return ""
    return f"Engine and model agree on the main measure of every layer within {instances.deviation:.1e}."


def _measures(table, instances, choices):
    of_all = table[(table["scope"] == ALL) & (table["target"] == LOSS)]
    every = of_all[of_all["weighting"] == EVERY_LAYER]
    shown = of_all[of_all["measure"].isin([each.measure for each in choices])]
    names = "; ".join(
        f"{name}: {words}" for name, words in measure_terms([*instances.measures, *instances.together])
    )
    combinations = f"All {int((of_all['prompt'] == MEAN).sum())} combinations of measure and layers"
    return [
        heading("Every measure, mean over layers"),
        sortable_table(*correlation_cells(every)),
        paragraph(names, "links"),
        heading("Which layers count"),
        sortable_table(*correlation_cells(shown)),
        folded(combinations, sortable_table(*correlation_cells(of_all))),
    ]


def _scopes(table, choices):
    own = table[table["target"] == LOSS]
    names = [f"{name}: {words}" for name, words in FAMILY_WORDS.items() if name in set(own["scope"])]
    return [
        heading("Where it holds"),
        sortable_table(*scope_cells(own, choices)),
        paragraph("; ".join([*names, "rows: distance behind the prompt"]) + ".", "links"),
    ]


def _targets(table, choices):
    of_all = table[table["scope"] == ALL]
    shown = of_all["measure"].isin([each.measure for each in choices])
    rows = of_all[(of_all["weighting"] == EVERY_LAYER) | shown]
    return [
        folded("Correlations with KL and with the first choice", sortable_table(*target_cells(rows, TARGETS)))
    ]
