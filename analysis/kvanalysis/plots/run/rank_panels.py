"""The two pictures of kvanalysis.plots.rank_table: mean ranks, and the matrix of all pairs."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from ...drawing.row_panels import ROW_HEIGHT, row_figure, set_left, set_rows
from ...drawing.style import finish, new_figure
from ...stats.families import FAMILIES, at_budget, budget_words, budgets_of

PANEL_GAP = 0.46  # inches between rows of panels: tick labels and titles
CELL_TEXT = 5.6
CELL_HEIGHT = 0.18
MOST_NUMBERED = 22  # labels; with more, a cell has no room for its three numbers
SHADES = "PuOr_r"


def draw_ranks(ranks, styles, width, note):
    """A row of panels for each family, a column for each budget; methods by their mean rank over budgets."""
    shown = [family for family in FAMILIES if family in set(ranks["family"])]
    budgets = budgets_of(ranks)
    orders = {family: _order(ranks[ranks["family"] == family]) for family in shown}
    heights = [len(orders[family]) for family in shown]
    figure, panels = row_figure(width, len(budgets), heights)
    for row, family in zip(panels, shown, strict=True):
        for axes, budget in zip(row, budgets, strict=True):
            own = at_budget(ranks[ranks["family"] == family], budget)
            _rank_panel(axes, own, orders[family], styles)
            axes.set_title(f"{family}, {budget_words(budget)}", fontsize=6.5)
        set_rows(row[0], orders[family], width)
    for axes in panels[-1]:
        axes.set_xlabel("mean rank")
    height = ROW_HEIGHT * sum(heights) + PANEL_GAP * (len(heights) - 1)
    average = height / len(heights) - PANEL_GAP * (len(heights) - 1) / len(heights)
    finish(figure, [], [], note, height, hspace=PANEL_GAP / average, wspace=0.08, top=0.26)
    set_left(figure, [label for order in orders.values() for label in order])
    return figure


def _order(ranks):
    return list(ranks.groupby("label")["mean_rank"].mean().sort_values().index)


def _rank_panel(axes, ranks, order, styles):
    methods = int(ranks["n_methods"].max())
    axes.axvline((methods + 1) / 2, color="#BBBBBB", linewidth=0.8, zorder=0)
    for _, row in ranks.iterrows():
        at, style = order.index(row["label"]), styles[row["label"]]
        if np.isfinite(row["rank_low"]):
            axes.hlines(at, row["rank_low"], row["rank_high"], color=style.colour, linewidth=1.4)
        axes.plot(row["mean_rank"], at, style.marker, color=style.colour, markersize=3.6)
    axes.set_xlim(0.6, methods + 0.4)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def draw_matrix(pairs, width, note):
    """Cell (row, column): wins / ties / losses of the row's method against the column's."""
    order = _by_wins(pairs)
    size = len(order)
    score, texts, sure = _cells(pairs, order)
    figure = new_figure(width)
    axes = figure.subplots()
    axes.imshow(np.ma.masked_invalid(score), cmap=SHADES, vmin=-1.6, vmax=1.6, aspect="auto")
    for (row, column), text in np.ndenumerate(texts):
        if text and size <= MOST_NUMBERED:
            axes.text(column, row, text, ha="center", va="center_baseline", fontsize=_size(size, width),
                      fontweight="bold" if sure[row, column] else "normal")  # fmt: skip
    names = [f"{i + 1}  {label}" for i, label in enumerate(order)]
    set_rows(axes, names, width)
    axes.set_xticks(range(size), [str(i + 1) for i in range(size)])
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False, pad=2)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    finish(figure, [], [], note, CELL_HEIGHT * size, below=0.1, top=0.24)
    set_left(figure, names)
    return figure


def _size(size, width):
    """Points: three numbers need the width of a cell."""
    return CELL_TEXT if size <= 14 or (width > 6 and size <= 16) else 4.6


def _by_wins(pairs):
    labels = sorted({*pairs["first"], *pairs["second"]})
    balance = dict.fromkeys(labels, 0)
    for _, pair in pairs.iterrows():
        balance[pair["first"]] += pair["wins"] - pair["losses"]
        balance[pair["second"]] += pair["losses"] - pair["wins"]
    return sorted(labels, key=lambda label: (-balance[label], label))


def _cells(pairs, order):
    size = len(order)
    score, texts, sure = (
        np.full((size, size), np.nan),
        np.full((size, size), "", object),
        np.zeros((size, size), bool),
    )
    for _, pair in pairs.iterrows():
        a, b = order.index(pair["first"]), order.index(pair["second"])
        share = (pair["wins"] - pair["losses"]) / pair["n_units"]
        score[a, b], score[b, a] = share, -share
        texts[a, b] = f"{pair['wins']}/{pair['ties']}/{pair['losses']}"
        texts[b, a] = f"{pair['losses']}/{pair['ties']}/{pair['wins']}"
        sure[a, b] = sure[b, a] = pair["difference_high"] < 0 or pair["difference_low"] > 0
    return score, texts, sure
