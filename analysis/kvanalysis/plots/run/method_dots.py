"""Methods in a list, a panel for each budget and measure: mean over heads with its interval.

options: {measures: [rel_err_out_mean, needle_mass], claims: [[subgen, h2o]]}; a claim says that the first
method's error is lower than the second's at every budget.
"""

from functools import partial
from textwrap import fill

import pandas as pd
from matplotlib.ticker import FixedLocator, MaxNLocator

from ...data.extras import extra
from ...data.metrics import MORE, known_metrics
from ...drawing.panel_grid import draw_empty_note, finish_grid, panel_grid
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, GLYPH_EMS, RC, new_figure, styles_for
from ...stats.intervals import size_interval, unit_means, used_rows
from ...stats.paired import lower_everywhere
from ...stats.words import BAND_NOTE, replay_note

AXES = {
    "rel_err_out_mean": "mean relative error",
    "needle_mass": "mass of planted spans",
    "kept_mass_mean": "kept mass",
    "total_bytes": "bytes of the cache",
}
ROW_HEIGHT, EDGE = 0.155, 0.25  # inches
MOST_TICKS = 4
LETTERS = 22  # letters of a name in a line; longer names are wrapped


def data(run):
    """`means` for those of options.measures that the run has."""
    frame = run.frame()
    return means(frame, [m for m in run.option("measures") if m in frame and frame[m].notna().any()])


def draw(run, table):
    frame, measures = run.frame(), list(dict.fromkeys(table["measure"]))
    missing = sorted(set(run.option("measures")) - set(measures))
    paint = partial(_figure, table, measures, _note(frame))
    return [Picture(run.config.title, table, paint, _caption(frame, table, missing))]


def claims(run, _table):
    return [_claim(run, *pair) for pair in run.option("claims", [])]


def means(frame, measures):
    """One row per (measure, budget, label): mean over heads, seeds averaged first, interval, heads, cells."""
    used, rows = used_rows(frame), []
    cells = frame.groupby(["budget_tokens", "label"]).size()
    for measure in measures:
        units = unit_means(used, [measure], ["budget_tokens", "label"])[measure].dropna()
        for key, values in units.groupby(level=["budget_tokens", "label"]):
            mean, low, high = size_interval(values)
            rows.append((measure, *key, mean, low, high, len(values), int(cells[key])))
    columns = ["measure", "budget_tokens", "label", "mean", "low", "high", "n_heads", "n_cells"]
    table = pd.DataFrame(rows, columns=columns)
    prompts = used.groupby("budget_tokens")["n_prefill"].min()
    table["share_kept"] = [b / prompts[b] for b in table["budget_tokens"]]
    return table


def _figure(table, measures, note, width):
    figure = new_figure(width)
    budgets = sorted(table["budget_tokens"].unique(), reverse=True)
    places = [(measure, budget) for measure in measures for budget in budgets]
    if not places:
        draw_empty_note(figure.subplots())
        finish_grid(figure, ([], []), note, 1, 1, 1.0)
        return figure
    across = len(budgets) if len(budgets) > 1 else len(measures)
    wide = width > COLUMN_WIDTH
    across = across if wide else 1
    panels = panel_grid(figure, len(places), across)
    order = (
        table[table["measure"] == measures[0]]
        .groupby("label")["mean"]
        .mean()
        .sort_values(ascending=False)
        .index
    )
    names = [fill(label, LETTERS, break_long_words=False) for label in order]
    shares = {name for name, metric in known_metrics().items() if metric.better == MORE}  # at most 1
    styles = styles_for(sorted(order), set())
    for index, (axes, (measure, budget)) in enumerate(zip(panels, places, strict=True)):
        rows = table[(table["measure"] == measure) & (table["budget_tokens"] == budget)].set_index("label")
        _panel(axes, rows.reindex(order), styles)
        axes.set_xlabel(AXES.get(measure, measure), labelpad=1)
        axes.set_title(f"{rows['share_kept'].iloc[0]:.0%} kept, {budget} tokens")
        axes.set_yticks(range(len(order)), names if index % across == 0 else [""] * len(order))
        axes.xaxis.set_major_locator(
            FixedLocator([0, 0.5, 1]) if measure in shares else MaxNLocator(MOST_TICKS)
        )
        axes.set_xlim(0, 1.25 * table.loc[table["measure"] == measure, ["mean", "high"]].max().max())
    height = EDGE + ROW_HEIGHT * sum(1 + name.count("\n") for name in names)
    gap = (0.62 if wide else 0.66) / height
    finish_grid(figure, ([], []), note, len(places), across, height, gap=gap, wspace=0.08)
    longest = max(len(line) for name in names for line in name.split("\n"))
    room = longest * RC["ytick.labelsize"] * GLYPH_EMS / 72 + EDGE
    figure.subplots_adjust(left=room / width)
    return figure


def _panel(axes, rows, styles):
    for place, (label, row) in enumerate(rows.iterrows()):
        if pd.isna(row["mean"]):
            continue
        axes.plot([row["low"], row["high"]], [place, place], color=styles[label].colour, linewidth=1)
        axes.plot(row["mean"], place, styles[label].marker, color=styles[label].colour, markersize=3.5)
        right = row["mean"] if pd.isna(row["high"]) else row["high"]
        axes.annotate(
            f"{row['mean']:.3g}",
            (right, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=5.5,
        )
    axes.set_ylim(-0.6, len(rows) - 0.4)


def _note(frame):
    return f"{replay_note(frame)} {BAND_NOTE.replace('Bands', 'Bars')}"


def _caption(frame, table, missing):
    random = frame.groupby("label")["seed"].nunique()
    repeated = sorted(random[random > 1].index)
    smallest = table[table["budget_tokens"] == table["budget_tokens"].min()]
    errors = smallest[smallest["measure"] == "rel_err_out_mean"]
    words = [f"{label} {mean:.3g}" for label, mean in zip(errors["label"], errors["mean"], strict=True)]
    at = "; at the smallest budget" if table["budget_tokens"].nunique() > 1 else ""
    text = f"Mean of ratios |z - o|/|o|, not clamped{at}: {', '.join(words)}."
    if repeated:
        text += f" {random.max()} seeds of {', '.join(repeated)}, averaged first."
    text += "".join(f" Identical numbers: {', '.join(names)}." for names in _identical(table))
    text += _level_budgets(frame)
    failed = int((frame["status"] != "ok").sum())
    text += f" {failed} of {len(frame)} cells have no result." if failed else ""
    return text + (f" Not in these results: {', '.join(missing)}." if missing else "")


def _level_budgets(frame):
    """Names methods whose rule shares the budget over layers but gave every layer the same."""
    level = sorted(set(frame.loc[extra(frame, "same_for_all_layers") == 1, "label"]))
    return f" The rule gave every layer the same budget here: {', '.join(level)}." if level else ""


def _identical(table):
    """Groups of labels whose drawn means are all equal."""
    errors = table.pivot_table(index="label", columns=["measure", "budget_tokens"], values="mean")
    groups = (
        errors.reset_index().groupby(list(errors.columns))["label"].agg(list) if len(errors.columns) else []
    )
    return [sorted(labels) for labels in groups if len(labels) > 1]


def _claim(run, first, second):
    pairs = []
    for budget, rows in run.frame().groupby("budget_tokens", sort=True):
        share = budget / rows["n_prefill"].min()
        pairs.append((f"{share:.0%}", *(rows[rows["method"] == name] for name in (first, second))))
    source = f"{run.config.paper}, {run.config.number} (order of the task scores)"
    return lower_everywhere(f"{first} has a lower error than {second}", source, pairs)
