"""From the oracles to each method: the error due to its choice of tokens, and the error from other causes."""

import numpy as np
from matplotlib.lines import Line2D

from ...budgets.regret import REFERENCE, STATIC, TOPK_GROUP, TOPK_HEAD, ladder
from ...drawing.row_panels import log_errors, panels_by_budget
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.families import FAMILIES, at_budget, budget_words, budgets_of, has_values
from .compared import shares_note

RUNGS = (TOPK_HEAD, TOPK_GROUP, STATIC)
RUNG_DASHES = {TOPK_HEAD: (0, (1, 1.5)), TOPK_GROUP: (0, (4, 2)), STATIC: "-"}
PANELS = {COLUMN_WIDTH: 1, PAGE_WIDTH: 4}
SELECTION, BEYOND, WHOLE = "#0072B2", "#D55E00", "#8A8A8A"
NORMALISER, NUMERATOR = "#009E73", "#CC79A7"
NUMBER_SIZE = 5.5
BEHIND = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.3}
FARTHEST = 100  # larger parts of the error are not drawn: a normaliser near zero gives unlimited ones
BELOW_ONE = (
    "Regret below 1 is possible and not a mistake: the static oracle keeps the tokens with most future mass,"
    " which need not give the lowest output error."
)


def data(run):
    """Errors compared with the oracles'; None unless a static oracle and another method were run."""
    table = ladder(run.rows)
    return None if table.empty or (table["rung"] != "").all() else table


def draw(run, table):
    """A panel for each budget: errors from the oracles on, and the parts of the errors if they were
    measured."""
    pictures = [_ladder_picture(run, table)]
    if has_values(table, "normaliser_part", "numerator_part"):
        pictures.append(_parts_picture(run, table))
    return pictures


def _ladder_picture(run, table):
    panels = panels_by_budget(
        table, _order(table), _paint_ladder, "mean rel. error", PANELS, _ladder_legend(table),
        _note(run, table),
    )  # fmt: skip
    return Picture("Regret against the oracles", table, panels, _caption(table), name="regret_ladder")


def _parts_picture(run, table):
    panels = panels_by_budget(
        table, _order(table), _paint_parts, "mean norm / ‖o‖", PANELS, _parts_legend(),
        PARTS_NOTE,
    )  # fmt: skip
    title = "Normaliser and numerator parts of the error"
    return Picture(title, table, panels, _parts_caption(table), name="error_parts")


def _order(table):
    """Rungs first, then family by family, the lowest mean error first."""
    rank = {rung: i for i, rung in enumerate(RUNGS)} | {family: 3 + i for i, family in enumerate(FAMILIES)}
    means = table.groupby("label").agg(
        rung=("rung", "first"), family=("family", "first"), error=("rel_err_out_mean", "mean")
    )
    place = [rank[rung or family] for rung, family in zip(means["rung"], means["family"], strict=True)]
    return list(means.assign(place=place).sort_values(["place", "error"]).index)


def _paint_ladder(axes, rows, order):
    for _, rung in rows[rows["rung"] != ""].iterrows():
        axes.axvline(
            rung["rel_err_out_mean"],
            color="#9A9A9A",
            linestyle=RUNG_DASHES[rung["rung"]],
            linewidth=0.8,
            zorder=0,
        )
    for _, row in rows.iterrows():
        _paint_row(axes, row, order.index(row["label"]))
    errors = rows["rel_err_out_mean"]
    log_errors(axes, errors.min() / 1.3, errors.max() * 2.6)


def _paint_row(axes, row, at):
    error, start, middle = row["rel_err_out_mean"], row["reference_error"], row["set_error"]
    if np.isfinite(middle):
        axes.hlines(at - 0.12, start, middle, color=SELECTION, linewidth=2.2)
        axes.hlines(at + 0.12, middle, error, color=BEYOND, linewidth=2.2)
    elif np.isfinite(start):
        axes.hlines(at, start, error, color=WHOLE, linewidth=1.6)
    marker = "D" if row["rung"] else "s" if row["family"] == "oneshot" else "o"
    axes.plot(error, at, marker, color="black", markersize=3.2)
    text = "" if row["rung"] == STATIC or not np.isfinite(row["regret"]) else f"×{row['regret']:.2f}"
    end = np.nanmax([error, start, middle])
    axes.annotate(text, (end, at), (4, 0), textcoords="offset points", va="center", fontsize=NUMBER_SIZE,
                  bbox=BEHIND)  # fmt: skip


def _ladder_legend(table):
    entries = [
        (Line2D([], [], color="#9A9A9A", linestyle=RUNG_DASHES[rung], linewidth=0.8), rung)
        for rung in RUNGS
        if rung in set(table["rung"])
    ]
    if has_values(table, "set_error"):
        entries += [
            (Line2D([], [], color=SELECTION, linewidth=2.2), "selection: tokens other than the oracle's"),
            (
                Line2D([], [], color=BEYOND, linewidth=2.2),
                "further gain or loss: weights, positions, new rows",
            ),
        ]
    else:
        entries.append(
            (Line2D([], [], color=WHOLE, linewidth=1.6), "from the oracle to the method, not split")
        )
    for marker, text in (("o", "stream (from topk per group)"), ("s", "oneshot (from the static oracle)")):
        entries.append((Line2D([], [], color="black", marker=marker, linestyle="", markersize=3.2), text))
    return [handle for handle, _ in entries], [text for _, text in entries]


PARTS_NOTE = (
    "z − o = (N − o)/τ + o (1 − τ)/τ, where τ is the method's denominator over the exact one and N its"
    " numerator over the exact denominator. Norms of the two parts relative to ‖o‖: they can point in"
    " opposite directions and cancel, so each may exceed the error. Rows without a finite part are left out"
    " of its mean; parts beyond 100 are not drawn."
)


def _paint_parts(axes, rows, order):
    errors = rows["rel_err_out_mean"]
    parts = rows[["normaliser_part", "numerator_part"]].to_numpy(float)
    drawn = parts[(parts > 0) & (parts < FARTHEST)]
    low, high = min([errors.min(), *drawn]), max([errors.max(), *drawn])
    for _, row in rows.iterrows():
        at = order.index(row["label"])
        axes.plot(row["rel_err_out_mean"], at, "o", color="black", markersize=3)
        axes.plot(row["normaliser_part"], at, "^", color=NORMALISER, markerfacecolor="none", markersize=3.6)
        axes.plot(row["numerator_part"], at, "v", color=NUMERATOR, markerfacecolor="none", markersize=3.6)
    log_errors(axes, low / 1.4, high * 1.4)


def _parts_legend():
    marks = (("o", "black", "black"), ("^", NORMALISER, "none"), ("v", NUMERATOR, "none"))
    handles = [
        Line2D([], [], color=colour, marker=marker, markerfacecolor=face, linestyle="", markersize=3.6)
        for marker, colour, face in marks
    ]
    return handles, ["error", "normaliser part ‖o (1 − τ)/τ‖ / ‖o‖", "numerator part ‖(N − o)/τ‖ / ‖o‖"]


def _note(run, table):
    parts = [
        "Number: regret = error over the static oracle's at the same budget, geometric mean over heads."
        " The static oracle cuts the prompt once and keeps every later token, so a streaming method of the"
        " same budget holds fewer tokens.",
        BELOW_ONE,
        *shares_note(run.rows),
    ]
    missing = sorted(set(REFERENCE.values()) - set(table["rung"]))
    if missing:
        parts.append(f"Not run: {', '.join(missing)}.")
    return " ".join(parts)


def _caption(table):
    texts = []
    methods = table[table["rung"] == ""]
    for budget in budgets_of(methods):
        nearest = at_budget(methods, budget).sort_values("regret").iloc[:3]
        named = ", ".join(f"{row['label']} {row['regret']:.2f}" for _, row in nearest.iterrows())
        texts.append(f"{budget_words(budget, 'B=')}: {named}")
    below = int((table.loc[table["rung"] == "", "regret"] < 1).sum())
    return f"Lowest regret: {'; '.join(texts)}. Below 1: {below} of {int((table['rung'] == '').sum())}."


def _parts_caption(table):
    own = table[(table["rung"] == "") & (table["numerator_part"] > 0)]
    share = (own["rel_err_out_mean"] / (own["numerator_part"] + own["normaliser_part"])).median()
    return f"Median over methods and budgets of error / (sum of both norms): {share:.2f}; 1: nothing cancels."
