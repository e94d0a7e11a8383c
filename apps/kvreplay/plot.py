"""The figures of `kvreplay report` on a matplotlib Axes, for notebooks and papers.

    kv.plot.error_vs_budget(run)                      # a new figure
    kv.plot.error_vs_bytes(run, ax)                   # on your Axes

Each function takes results and an Axes and returns the Axes. Results are a Run, its table or rows of it
(`run.table.query("layer == 7")`), or the folder that `kvreplay run` wrote. Without an Axes, pyplot makes a
figure. With an Axes, only this Axes is changed; a legend and a map's colour scale take their space from it: a
legend stands below the Axes, or beside it if it is narrow. Font sizes are matplotlib's settings.

All functions raise ConfigError if the results are ambiguous (two traces) or lack the method or budget; the
message lists what they hold.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvanalysis.data.exact_head import group_attention
from kvanalysis.data.shares import Share, shares_of
from kvanalysis.drawing import head_maps
from kvanalysis.drawing.budget_axes import drawable, frame_errors, handle, set_error_axis
from kvanalysis.drawing.outside import fit_labels, legend_outside
from kvanalysis.drawing.panel_grid import draw_empty_note
from kvanalysis.drawing.style import RC
from kvanalysis.errors import ResultsError
from kvanalysis.plots.run.error_over_position import position_curve, set_position_axis
from kvanalysis.plots.run.error_vs_budget import (
    BUDGET_AXIS,
    ERROR_AXIS,
    budget_legend,
    budget_panel,
    set_budget_ticks,
)
from kvanalysis.plots.run.error_vs_bytes import (
    MEAN,
    NAMES,
    PEAK,
    PROMPT_SHARE,
    WHOLE,
    asked_of,
    bytes_legend,
    bytes_panel,
    bytes_points,
    loss_words,
    main_size,
    share_axis,
    sizes_of,
)
from kvanalysis.plots.run.one_trace import OneTrace
from kvanalysis.plots.run.positions import along_rows
from kvanalysis.plots.timeline.kept_timeline import MAP, RED, mass_norm, timeline_panel
from kvanalysis.plots.timeline.residence import kept_timeline as timeline_of_lists
from kvanalysis.stats.families import at_budget, budget_words, budgets_of, head_table, middle_budget
from kvanalysis.stats.intervals import used_rows
from kvbase.errors import ConfigError
from matplotlib.cm import ScalarMappable
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .results import rows_of
from .run import Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from .results import Results

__all__ = ["error_over_position", "error_vs_budget", "error_vs_bytes", "kept_timeline", "layer_head_map"]

SIZES = {"prompt": PROMPT_SHARE, "peak": PEAK, "mean": MEAN}
ONE_SHOT = "one shot"
ERROR_SCALE = "mean relative output error"
MASS_SCALE = "attention of later queries [rows]"


def error_vs_budget(results: "Results", ax: "Axes | None" = None, *, legend: bool = True) -> "Axes":
    """Mean relative error of the attention output against the budget in tokens, a curve per method.

        ax = kv.plot.error_vs_budget(run)

    Bands are 95 % confidence intervals over heads. Dashed black or grey curves are oracles; a dotted line is
    a method without budgets; hollow points have failed cells. Methods without a result or with no error
    beyond rounding are not drawn; the legend lists them. One-shot methods also keep every token after the
    prompt: the legend marks them, and error_vs_bytes compares them fairly.
    """
    run, axes = _single_trace(results), _axes(ax)
    budget_panel(axes, run.summary, run.summary, _width(axes))
    axes.set(xlabel=BUDGET_AXIS, ylabel=ERROR_AXIS)
    _finish(axes, run, *budget_legend(run.summary), legend)
    set_budget_ticks(axes, run.summary, _width(axes))
    return axes


def error_vs_bytes(
    results: "Results", ax: "Axes | None" = None, *, size: str | None = None, legend: bool = True
) -> "Axes":
    """Error of the attention output against total bytes in percent of the full cache at the last token.

        ax = kv.plot.error_vs_bytes(run, size="mean")

    The error is the squared cosine distance, or the mean relative error if the table lacks it. Each point of
    a curve is a budget. The staircase is the Pareto front: no point has both lower error and fewer bytes.

    size: "prompt", the bytes after the prompt is cut, as a share of the prompt's full cache (the default if
    the results are compared by it); "peak" of the bytes (else the default); or their "mean" over steps.
    """
    run = _single_trace(results)
    points = bytes_points(run)
    known = [name for name, column in SIZES.items() if column in sizes_of(points)]
    if size is None:
        size = "prompt" if main_size(points) == PROMPT_SHARE else "peak"
    if len(points) and size not in known:
        raise ConfigError(f"size is {size!r}: the results have {' and '.join(known) or 'no bytes'}")
    axes = _axes(ax)
    axes.set(xlabel=f"bytes {NAMES[SIZES[size]]} [% of {WHOLE[SIZES[size]]}]", ylabel=loss_words(points))
    if points.empty:
        draw_empty_note(axes)
        return axes
    column = SIZES[size]
    bytes_panel(axes, points, column, run.styles)
    frame_errors(axes, points["loss"])
    asked = asked_of(points) if column == main_size(points) else ()
    share_axis(axes, points[column].to_numpy(float), asked)
    _finish(axes, run, *bytes_legend(points, column, run.styles), legend)
    return axes


def error_over_position(
    results: "Results", ax: "Axes | None" = None, *, budget: "int | str | None" = None, legend: bool = True
) -> "Axes":
    """Mean relative error of the attention output along the scored rows, at one budget.

        ax = kv.plot.error_over_position(run, budget=64)

    Bands are 95 % confidence intervals over heads. Curves are rolling means if the run has them
    (`replay(save="curves")`), otherwise means of the four quarters of the rows.

    budget: in tokens, or the share of the cache that the run was asked for, such as "20%", at which methods
    hold different numbers of tokens; default: the middle one.
    """
    run = _single_trace(results)
    used = used_rows(run.rows)
    at = _known_budget(used, budget)
    rows = at_budget(used, at)
    saved = {cell.row["key"]: cell.arrays for cell in _cells(results) if "rel_err" in cell.arrays}
    table, _ = along_rows(rows, [saved])
    axes = _axes(ax)
    axes.set_ylabel(ERROR_AXIS)
    if table.empty:
        draw_empty_note(axes)
        return axes
    worst_first = table.groupby("label")["rel_err_mean"].mean().sort_values(ascending=False).index
    worst_first = [label for label in worst_first if label in run.styles]
    for label in worst_first:
        position_curve(axes, table[table["label"] == label], run.styles[label])
    set_error_axis(axes, table.loc[table["label"].isin(worst_first), "rel_err_mean"])
    set_position_axis(axes, table)
    axes.set_title(_at(at))
    _finish(axes, run, [handle(run.styles[label], True) for label in worst_first], worst_first, legend)
    return axes


def layer_head_map(
    results: "Results",
    ax: "Axes | None" = None,
    *,
    method: str | None = None,
    budget: "int | str | None" = None,
    scale: bool = True,
) -> "Axes":
    """Mean relative error of the attention output for each layer and kv head, as a map of colours. Numbers
    are added if they fit.

        ax = kv.plot.layer_head_map(run, method="h2o", budget=64)

    method: its label in the table, or its name if it has one instance; optional if the results hold one
        method. budget: in tokens, or a share such as "20%"; default: the middle one. scale: draw a colour
        scale beside the map.
    """
    run = _single_trace(results)
    rows = _of_method(used_rows(run.rows), method)
    at = _known_budget(rows, budget) if rows["budget_tokens"].notna().any() else None
    rows = rows if at is None else at_budget(rows, at)
    errors = head_table(rows).iloc[:, 0]
    norm, axes = head_maps.shared_norm(errors), _axes(ax)
    if scale:
        _add_scale(axes, norm, head_maps.COLOURS, ERROR_SCALE)
    layers, heads = (sorted(errors.index.unique(level)) for level in (0, 1))
    width, height = _extent(axes)
    shape = head_maps.Grid(1, 1, width, height / len(layers), layers, heads, 0.0)
    letters = _tick_points(axes)
    head_maps.draw_numbers(
        axes, head_maps.matrix(errors, shape), norm, shape, head_maps.short, min(letters, 9.0)
    )
    head_maps.set_ticks(axes, shape, letters)
    axes.set(xlabel="kv head", ylabel="layer", title=f"{rows['label'].iloc[0]}, {_at(at)}".rstrip(", "))
    return axes


def kept_timeline(
    run: Run,
    ax: "Axes | None" = None,
    *,
    method: str | None = None,
    budget: int | None = None,
    marked: int = 12,
    legend: bool = True,
    **place: Any,
) -> "Axes":
    """Tokens that one cache holds, by step (x) and position (y).

        ax = kv.plot.kept_timeline(run, method="h2o", budget=64, layer=15, head=1)

    Colours are the exact attention that a token receives from queries after the prompt, in rows: 1 is the
    whole attention of one query.

    run: a Run; tables and folders do not hold the tokens. If `replay(save="kept")` did not keep them, the
        cell is replayed. Queries must not be strided, and query heads must share a cache.
    method, budget, place: which cell, as for `Run.kept` (layer, head, prompt, seed, params).
    marked: how many evictions to mark with dots: those of the tokens with most attention afterwards.
    """
    if not isinstance(run, Run):
        raise ConfigError("kept_timeline draws a Run: a table or a folder does not hold the kept tokens")
    row, lists = run.row(method, budget, **place), run.kept(method, budget, **place)
    try:
        table = _timeline(run, row, lists)
    except ResultsError as error:
        raise ConfigError(str(error)) from None
    norm, axes = mass_norm(table), _axes(ax)
    title = f"{row['label']}, B = {row['budget_tokens']}, layer {row['layer']}, kv head {row['kv_head']}"
    timeline_panel(table, title, norm, row["n_prefill"], row["n_tokens"], marked, 0)(axes)
    _add_scale(axes, norm, MAP, MASS_SCALE, extend="both")
    if legend:
        white = Patch(facecolor="white", edgecolor="#999999")
        dot = Line2D([], [], linestyle="", marker="o", markersize=3, color=RED)
        legend_outside(axes, [white, dot], ["not held", "evicted, wanted later"], beside=False)
    return axes


def _timeline(run: Run, row: Mapping[str, Any], lists: list[Any]) -> "pd.DataFrame":
    place = (row[name] for name in ("prompt", "layer", "kv_head", "n_prefill", "n_tokens"))
    return timeline_of_lists(lists, group_attention(run.recorded(row), *place), row["n_prefill"])


# ---- results


def _single_trace(results: "Results") -> OneTrace:
    rows = rows_of(results)
    if rows.empty:
        raise ConfigError("there are no results to draw: the table has no rows")
    traces = sorted(set(rows["trace_id"]))
    if len(traces) > 1:
        raise ConfigError(
            f"the results are of {len(traces)} traces: draw the rows of one, for example"
            f' table[table["trace_id"] == "{traces[0]}"]'
        )
    return OneTrace(rows)


def _cells(results: "Results") -> list[Any]:
    return results.cells if isinstance(results, Run) else []


def _of_method(rows: "pd.DataFrame", method: str | None) -> "pd.DataFrame":
    labels = sorted(set(rows["label"]))
    if method is None and len(labels) == 1:
        return rows
    found = rows[rows["label"] == method]
    if found.empty:
        found = rows[rows["method"] == method]
    if found["label"].nunique() != 1:
        said = "several methods" if method is None else f"no one curve called {method!r}"
        raise ConfigError(f"the results hold {said}: method may be {', '.join(labels) or 'none'}")
    return found


def _known_budget(rows: "pd.DataFrame", budget: int | str | None) -> "int | Share | None":
    if budget is None:
        return middle_budget(rows)
    wanted = _read_budget(rows, budget)
    if wanted is None or at_budget(rows, wanted).empty:
        known = ", ".join(map(str, budgets_of(rows))) or "none"
        raise ConfigError(f"budget is {budget}: the results have {known}")
    return wanted


def _read_budget(rows: "pd.DataFrame", budget: int | str) -> "int | Share | None":
    """A number of tokens, or the share of the rows that a text such as "20%" names; None if none does."""
    if not isinstance(budget, str):
        return budget
    named = {str(share).replace(" ", ""): share for share in shares_of(rows)}
    return named.get(budget.replace(" ", ""))


def _at(budget: "int | Share | None") -> str:
    return "" if budget is None else budget_words(budget)


# ---- axes


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _extent(axes: "Axes") -> tuple[float, float]:
    """Width and height in inches."""
    figure = axes.figure.figure  # the whole figure, also for axes in a subfigure
    figure.draw_without_rendering()  # applies a computed layout, which is pending before the first drawing
    box = axes.get_window_extent()
    return box.width / figure.dpi, box.height / figure.dpi


def _width(axes: "Axes") -> float:
    """Width in inches, scaled as if tick labels had the font size of the report's pages."""
    return _extent(axes)[0] * RC["xtick.labelsize"] / _tick_points(axes)


def _tick_points(axes: "Axes") -> float:
    """Font size of tick labels in points."""
    return axes.xaxis.get_major_ticks(1)[0].label1.get_size()


def _add_scale(axes: "Axes", norm: Any, colours: Any, label: str, **more: Any) -> None:
    bar = axes.figure.colorbar(ScalarMappable(norm, colours), ax=axes, label=label, **more)
    head_maps.plain_scale(bar)


def _finish(axes: "Axes", run: OneTrace, handles: list[Any], texts: list[str], legend: bool) -> None:
    """Fits the axis labels, and adds the legend. It marks one-shot methods and lists methods that are not
    drawn."""
    if not legend:
        fit_labels(axes)
        return
    oneshot = {
        label for label, params in zip(run.rows["label"], run.rows["params"], strict=True)
        if isinstance(params, Mapping) and params.get("phase") == "oneshot"
    }  # fmt: skip
    texts = [f"{text} ({ONE_SHOT})" if text in oneshot else text for text in texts]
    missing = sorted(set(run.rows["label"]) - set(drawable(run.summary)["label"]))
    handles = [*handles, *(Line2D([], [], linestyle="") for _ in missing)]
    texts = [*texts, *(f"not drawn: {label}" for label in missing)]
    legend_outside(axes, handles, texts)
