"""One module per kind of figure.

An overview plot has `draw_frame(rows, folder, suffix) -> [Drawn]`: it draws what it can from the rows of
one trace and returns [] where they do not allow it. A kind that a configuration names in `figure.kind` is
a module with `draw(context) -> Plot`; it may have `settled(context, step) -> {key: value}`, overrides of a
run or cluster step that follow from the trace or from a step before it (the size of a sample from the run
that it is paired with). Both write PNG, PDF and CSV through `kvanalysis.drawing.saving`.
"""

from importlib import import_module

from .budgets import budget_for_epsilon
from .confirm import loss_against_error, loss_by_layer
from .run import (
    best_method_map,
    error_over_position,
    error_vs_budget,
    error_vs_bytes,
    layer_head_map,
    needle_recall,
    prefix_error,
    rank_table,
    regret_ladder,
)

# What matters most comes first: a page that grows too large leaves out the last ones.
OVERVIEW = (
    error_vs_budget,
    error_vs_bytes,
    loss_against_error,
    loss_by_layer,
    budget_for_epsilon,
    rank_table,
    regret_ladder,
    prefix_error,
    error_over_position,
    best_method_map,
    layer_head_map,
    needle_recall,
)


# What `figure.kind` may name, by the room that its module stands in.
ROOMS = {
    "run": ("budget_claims", "error_table", "error_vs_budget", "method_dots", "overview"),
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


def kinds():
    """Names that `figure.kind` may take, sorted."""
    return sorted(kind for named in ROOMS.values() for kind in named)


def renderer(kind):
    """The `draw` of one of `kinds()`."""
    return _module(kind).draw


def settler(kind):
    """The `settled` of one of `kinds()`, or None."""
    return getattr(_module(kind), "settled", None)


def _module(kind):
    [room] = [room for room, named in ROOMS.items() if kind in named]
    return import_module(f".{room}.{kind}", __name__)
