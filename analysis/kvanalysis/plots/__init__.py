"""One module per kind of figure.

An overview plot has `draw_frame(rows, folder, suffix) -> [Drawn]`: it draws what it can from the rows of
one trace and returns [] where they do not allow it. A kind that a configuration names in `figure.kind` is
a module with `draw(context) -> Plot`; it may have `settled(context, step) -> {key: value}`, overrides of a
run or cluster step that follow from the trace or from a step before it (the size of a sample from the run
that it is paired with). Both write PNG, PDF and CSV through `kvanalysis.drawing.drawn`.
"""

from importlib import import_module
from pkgutil import iter_modules

from . import (
    best_method_map,
    budget_for_epsilon,
    error_over_position,
    error_vs_budget,
    error_vs_bytes,
    layer_head_map,
    loss_against_error,
    loss_by_layer,
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


def kinds():
    """Names that `figure.kind` may take, sorted."""
    modules = (name for _, name, _ in iter_modules(__path__))
    return sorted(name for name in modules if hasattr(import_module(f"{__name__}.{name}"), "draw"))


def renderer(kind):
    """The `draw` of one of `kinds()`."""
    return import_module(f"{__name__}.{kind}").draw


def settler(kind):
    """The `settled` of one of `kinds()`, or None."""
    return getattr(import_module(f"{__name__}.{kind}"), "settled", None)
