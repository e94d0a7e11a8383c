"""One module per kind of figure, three functions each.

`data(run)` returns the table, or several, that the figure shows. `draw(run, table)` returns its pictures
(`drawing.saving.Picture`). `claims(run, table)`, where a paper makes a claim, returns the verdicts on it.
They compute and draw, but write nothing.

OVERVIEW are figures of every run: `run` is `run.one_trace.OneTrace`, and `data` returns None if the rows do
not allow the figure. Kinds that a configuration names in `figure.kind` get a `figures.context.Context`. Such
a kind may define `derived_overrides(run, step) -> {key: value}` for a run or cluster step: overrides that
follow from the trace or an earlier step (for example the size of a sample from the run that it is paired
with).
"""

from dataclasses import replace
from importlib import import_module

from ..drawing.budget_axes import styles_of
from ..stats.intervals import by_trace
from ..stats.summary import summarise
from .budgets import budget_for_epsilon
from .confirm import accuracy, loss_against_error, loss_by_layer, predicted_loss
from .run import (
    best_method_map,
    error_over_position,
    error_vs_bytes,
    layer_head_map,
    loss_by_head,
    needle_recall,
    prefix_error,
    rank_table,
    regret_ladder,
)
from .run.one_trace import OneTrace

# The most important come first: a page that grows too large leaves out the last ones.
OVERVIEW = (
    error_vs_bytes,
    accuracy,
    predicted_loss,
    loss_against_error,
    loss_by_layer,
    budget_for_epsilon,
    rank_table,
    regret_ladder,
    prefix_error,
    error_over_position,
    best_method_map,
    layer_head_map,
    loss_by_head,
    needle_recall,
)
# Values of `figure.kind`, by the folder of their module.
ROOMS = {
    "run": ("budget_claims", "error_table", "leaderboard", "method_dots", "overview", "row_formats"),
    "budgets": ("inverse_epsilon",),
    "timeline": ("kept_timeline",),
    "theory": ("bound_tightness", "epsilon_sweep", "memory_vs_n"),
    "subgen": ("cluster_growth", "radius_curves", "subgen_theorem", "tsne_panels"),
    "h2o": (
        *("accumulated_tail", "dropped_tokens", "global_statistics", "greedy_ratio", "sparsity_by_layer"),
        "toy_steps",
    ),
    "buzz": (
        *("live_tokens", "log_n_references", "matched_average", "needle_spans", "segment_peaks"),
        "size_ratio",
    ),
    "balancekv": ("halving_error", "merge_tree", "walk_theorems"),
}
KINDS = {kind: f".{room}.{kind}" for room, named in ROOMS.items() for kind in named}
KINDS["error_vs_budget"] = KINDS["budget_claims"]  # a configuration need not write claims down


def kinds():
    """Possible values of `figure.kind`, sorted."""
    return sorted(KINDS)


def module_of(kind):
    """The module of one of `kinds()`."""
    return import_module(KINDS[kind], __name__)


def pictures_of(frame, plots=OVERVIEW, told=None, summary=None, losses=None):
    """The Pictures of `plots` that `load`'s table allows, trace by trace and in their order.

    `told(number, total, name)` is a callback before each kind of figure of each trace, number from 1.
    `summary` (stats.summary) and `losses` (loss.predicted): the table's, if already known.
    """
    summary = summarise(frame) if summary is None else summary
    styles, traces = styles_of(summary), list(by_trace(frame))
    for at, (trace, rows) in enumerate(traces):
        name = rows["trace_id"].iloc[0]
        own = losses and losses.of_trace(name)
        run = OneTrace(rows, summary[summary["trace_id"] == name], styles, own)
        for number, plot in enumerate(plots, at * len(plots) + 1):
            if told is not None:
                told(number, len(traces) * len(plots), f"{trace}{plot.__name__.rpartition('.')[2]}")
            table = plot.data(run)
            for picture in plot.draw(run, table) if table is not None else ():
                more = {f"{trace}{name}": each for name, each in picture.more.items()}
                yield replace(picture, name=f"{trace}{picture.name}", more=more)
