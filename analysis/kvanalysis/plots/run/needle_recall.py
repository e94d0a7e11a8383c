"""The share of the attention to marked tokens that a method still holds, span by span."""

from functools import partial

import numpy as np
import pandas as pd

from ...data.extras import all_extras
from ...drawing.head_maps import CELL_TEXT, COLOURS, short
from ...drawing.row_panels import panels_by_budget
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH
from ...stats.families import at_budget, budget_columns, budget_words, budgets_of, has_values
from ...stats.intervals import unit_means, used_rows
from .compared import shares_note

MASS, SPAN = "needle_mass", "needle_mass_"
PANELS = {COLUMN_WIDTH: 1, PAGE_WIDTH: 4}


def data(run):
    """Means over all marked spans and for each span, by budget and label."""
    used = used_rows(run.rows)
    table = _table(_with_spans(used)) if has_values(used, MASS) else pd.DataFrame()
    return None if table.empty else table


def draw(run, table):
    """A panel for each budget: a row for each method, a column for all spans and for each span."""
    spans = [MASS, *(name for name in table if name.startswith(SPAN))]
    names = _names(run.rows, spans)
    order = list(table.groupby("label")[MASS].mean().sort_values(ascending=False).index)
    paint = partial(_paint, spans=spans, names=names)
    panels = panels_by_budget(table, order, paint, "marked span", PANELS, ([], []), _note(run, names))
    caption = _caption(table, spans, names)
    return [Picture("Attention to marked spans", table, panels, caption, name="needle_recall")]


def _with_spans(used):
    """The numbers of each span from `extras`, as columns."""
    parsed = all_extras(used)
    names = sorted({name for extra in parsed for name in extra if name.startswith(SPAN)}, key=_number)
    return used.assign(**{name: [extra.get(name, np.nan) for extra in parsed] for name in names})


def _number(name):
    return int(name.removeprefix(SPAN)) if name.removeprefix(SPAN).isdigit() else 0


def _table(used):
    spans = [name for name in used if name == MASS or name.startswith(SPAN)]
    used = used[used["budget_tokens"].notna() & used[MASS].notna()]
    if used.empty:
        return pd.DataFrame()
    return pd.concat([_table_at(used, budget, spans) for budget in budgets_of(used)], ignore_index=True)


def _table_at(used, budget, spans):
    groups = unit_means(at_budget(used, budget), spans, ["label"]).groupby(level="label")
    return groups.mean().assign(n_units=groups.size(), **budget_columns(budget)).reset_index()


def _names(rows, spans):
    """`all`, then the place where each span starts, if the configuration gives it."""
    needles = rows.attrs.get("meta", {}).get("config", {}).get("replay", {}).get("needles") or {}
    places = needles.get("at", []) if isinstance(needles, dict) else []
    found = [f"{100 * place:g} %" for place in places]
    return ["all", *(found if len(found) == len(spans) - 1 else [str(_number(name)) for name in spans[1:]])]


def _paint(axes, rows, order, spans, names):
    values = rows.set_index("label")[spans].reindex(order).to_numpy(float)
    axes.imshow(np.ma.masked_invalid(values), cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            axes.text(column, row, short(value), ha="center", va="center_baseline", fontsize=CELL_TEXT,
                      color="white" if value > 0.5 else "black")  # fmt: skip
    axes.set_xticks(range(len(names)), names, fontsize=6)
    axes.grid(False)


def _note(run, names):
    where = f" Spans at {', '.join(names[1:])} of the prompt." if "%" in "".join(names) else ""
    told = (
        "Exact attention probability of the marked tokens that the method still attends"
        " to, over the full probability of all marked tokens; 1: none is lost. Seeds and heads averaged;"
        f" all: the spans pooled, so the span with most attention weighs most.{where}"
    )
    return " ".join([told, *shares_note(run.rows)])


def _caption(table, spans, names):
    """The spread over spans: the places that a method loses."""
    budgets = budgets_of(table)
    middle = budgets[(len(budgets) - 1) // 2]
    own = at_budget(table, middle).set_index("label")
    texts = [
        f"{label} " + "/".join(short(row[name]) if np.isfinite(row[name]) else "–" for name in spans)
        for label, row in own.sort_values(MASS, ascending=False).iterrows()
    ]
    return f"{budget_words(middle, 'B=')} ({'/'.join(names)}): {'; '.join(texts)}."
