"""Ranks every method of each run step, at the sizes that the step was asked for.

options: {titles: {step: title}, notes: {step: text}, absent: {name: why it has no row}}; the last two are for
the page. A step that requests shares of bytes is ranked at those shares of those bytes. A step that
requests tokens is ranked at those tokens, which is fair among methods that store everything. Methods without
a budget are listed with their own size. Methods are ranked like in `compare_at`: by predicted nats if the
results have them for every method of the table, else by the squared cosine distance.
"""

from dataclasses import dataclass, replace
from functools import partial
from textwrap import wrap

import pandas as pd

from ...answer.compare import compare_at
from ...answer.measures import DEFAULT, MAIN, NATS, column_of, metric_of, words_of
from ...answer.nats import nats_at
from ...answer.reached import Question, Reached, reached
from ...answer.sizes import PEAK, SIZES, default_size, is_share_of
from ...data.labels import named_values
from ...data.shares import by_share, with_common_budgets
from ...drawing.log_ticks import plain_log, subs_for
from ...drawing.panel_grid import draw_empty_note
from ...drawing.row_panels import set_left, set_rows
from ...drawing.saving import Picture
from ...drawing.style import COLOURS, COLUMN_WIDTH, ORACLE_COLOURS, PAGE_WIDTH, finish, new_figure
from ...errors import ConfigError, ResultsError
from ...loss.predicted import Losses, losses_of
from ...stats.families import at_budget, budgets_of
from ...stats.intervals import by_trace, size_interval, used_rows
from ...stats.words import BAND_NOTE, count, replay_note

ROW_HEIGHT, EDGE = 0.17, 0.2  # inches
BELOW = {COLUMN_WIDTH: 0.54, PAGE_WIDTH: 0.42}  # inches: tick labels and the label of the measure
LETTERS = {COLUMN_WIDTH: 34, PAGE_WIDTH: 70}  # letters of a line of that label
WHERE = ["prompt", "budget_tokens", "seed"]
OF = {PEAK: "the full cache’s bytes"}  # other bytes are named as in answer.sizes
COLUMNS = ["step", "size", "measure", "name", "label", "ceiling", "loss", "low", "high", "stored", "read",
           "decided", "nats", "distance", "error", "measured", "how"]  # fmt: skip


@dataclass(frozen=True)
class Size:
    """What the methods of a ranking share: a `share` of the bytes `of` (answer.sizes), `tokens` that a step
    may read, or nothing (`own`)."""

    kind: str
    value: float = 0.0
    of: str = PEAK

    def __str__(self) -> str:
        return {
            "share": f"{100 * self.value:g} % of {OF.get(self.of, SIZES[self.of].short)}",
            "tokens": f"{self.value:g} tokens read in a step",
            "own": "a size of its own",
        }[self.kind]


def data(run) -> pd.DataFrame:
    """A row of COLUMNS for each method of each ranking, the lowest `loss` first, ceilings and methods without
    a number last. `loss` is the value of `measure`; `nats` are predicted; `distance` (DEFAULT) and `error`
    (MAIN) are means over heads; `measured` is the model's own loss in nats a token."""
    steps = [step.name for step in run.config.steps if step.command == "run"]
    tables = [table for step in steps for table in rankings(step, run.frame(step))]
    return pd.concat(tables, ignore_index=True)


def draw(run, table: pd.DataFrame) -> list[Picture]:
    titles = run.option("titles", {"": ""})
    return [
        Picture(
            titles.get(step, step), own, partial(_figure, own, _note(run.frame(step))), _caption(own), step
        )
        for step, own in table.groupby("step", sort=False)
    ]


def sizes_of(frame: pd.DataFrame) -> list[Size]:
    """The sizes that the rows were requested at, shares before tokens."""
    shares = sorted(by_share(frame)["share"].dropna().unique())
    if shares:
        return [Size("share", float(share), default_size(frame)) for share in shares]
    return [Size("tokens", budget) for budget in budgets_of(frame)] or [Size("own")]


def rankings(step: str, frame: pd.DataFrame) -> list[pd.DataFrame]:
    """`ranking` of `load`'s table at each size that was requested."""
    losses = losses_of(frame)
    return [ranking(step, frame, size, losses) for size in sizes_of(frame)]


def ranking(step: str, frame: pd.DataFrame, size: Size, losses: Losses | None) -> pd.DataFrame:
    """A row of COLUMNS for each method of `load`'s table at a size."""
    rows, share = _at(frame, size)
    measure, found = _contenders(rows, share, size.of, losses)
    asked = Question(share, "", SIZES[size.of], is_share_of(frame.attrs.get("meta", {}), size.of))
    found += _ceilings(rows, asked, losses, measure)
    measured, names = _measured(frame, losses, size), _names(frame)
    stored, read = _sizes(frame, size)
    errors = {label: each.mean() for label, each in _on_heads(rows, replace(asked, column=MAIN)).items()}
    for row in found:
        label = row["label"]
        equal = [names.get(other, other) for other in row.pop("equals", "").split(", ") if other]
        row |= {"step": step, "size": str(size), "name": " = ".join([names.get(label, label), *equal])}
        row |= {"measure": measure, "stored": stored.get(label), "read": read.get(label)}
        row |= {"error": errors.get(label), "measured": measured.get(label)}
    table = pd.DataFrame(found).reindex(columns=COLUMNS)
    if size.kind != "share":
        table["how"] = ""  # the title says it
    return table.assign(decided=None) if size.kind == "own" else table


def _names(frame: pd.DataFrame) -> dict[str, str]:
    """{label: the method with all its given parameters}, so that a published row identifies its variant."""
    known = frame.drop_duplicates("label")
    return {
        row.label: " ".join([row.method, *named_values(row.given, sorted(row.given))])
        for row in known.itertuples()
    }


def _at(frame: pd.DataFrame, size: Size) -> tuple[pd.DataFrame, float]:
    """(rows that compete, the share at which compare_at finds them). Methods that store everything compete at
    equal reads, so their bytes are made equal here."""
    if size.kind == "share":
        return frame, size.value
    rows = at_budget(frame, size.value) if size.kind == "tokens" else frame
    rows = rows.assign(total_bytes=rows["full_bytes"])
    rows.attrs = frame.attrs
    return rows, 1.0


def _contenders(rows: pd.DataFrame, share: float, of: str, losses: Losses | None) -> tuple[str, list[dict]]:
    """(the measure that ranks them, the competing methods)."""
    try:
        answer = compare_at(rows, share, of=of, losses=losses)
    except (ResultsError, ConfigError):
        return DEFAULT, []
    return answer.measure, [
        {
            "label": row.label, "equals": row.equals, "ceiling": False,
            "loss": row.error, "low": row.low, "high": row.high, "distance": row.distance,
            "nats": row.nats, "decided": bool(row.decided), "how": row.how,
        }
        for row in answer.ranking.itertuples()
    ]  # fmt: skip


def _ceilings(rows: pd.DataFrame, asked: Question, losses: Losses | None, measure: str) -> list[dict]:
    """Oracles do not compete; they show how much room for improvement is left."""
    used = used_rows(rows)
    oracles = used[used["oracle"]]
    if oracles.empty:
        return []
    column = column_of(rows, None if measure == NATS else measure)
    asked = replace(asked, column=column, better=metric_of(rows, column).better)
    values = _on_heads(oracles, asked)
    numbers = {label: size_interval(each) for label, each in values.items()}
    told = nats_at(losses, oracles, asked)
    if measure == NATS:
        numbers = {row.Index: tuple(row)[1:] for row in told.itertuples() if row.Index in values}
    return [
        {"label": label, "ceiling": True, "loss": loss, "low": low, "high": high,
         "nats": told["nats"].get(label), "distance": values[label].mean(), "how": ""}
        for label, (loss, low, high) in numbers.items()
    ]  # fmt: skip


def _on_heads(rows: pd.DataFrame, asked: Question) -> dict[str, pd.Series]:
    """{label: a column of every unit at the share}, for labels that reach it."""
    groups = used_rows(rows).groupby("label", sort=True)
    found = {label: reached(own, asked) for label, own in groups}
    return {label: each.values for label, each in found.items() if isinstance(each, Reached)}


def _asked(frame: pd.DataFrame, size: Size) -> pd.DataFrame:
    """The finished rows that were replayed for a size."""
    used = used_rows(frame)
    if size.kind == "share":
        marked = by_share(used)
        return marked[marked["share"] == size.value]
    return at_budget(used, size.value) if size.kind == "tokens" else used


def _sizes(frame: pd.DataFrame, size: Size) -> tuple[dict[str, float], dict[str, float]]:
    """({label: bytes stored}, {label: bytes read in a step}), as shares of the full cache's bytes: stored
    bytes as the size counts them, read bytes of the cache at its last token."""
    rows = _asked(frame, size)
    groups, counted = rows.groupby("label"), SIZES[size.of]
    stored, full = groups[counted.held].mean() / groups[counted.full].mean(), groups["full_bytes"].mean()
    read = groups["read_bytes_per_step"].mean() if "read_bytes_per_step" in rows else full * float("nan")
    return stored.to_dict(), (read / full).to_dict()


def _measured(frame: pd.DataFrame, losses: Losses | None, size: Size) -> dict[str, float]:
    """{label: the model's own loss in nats a token, the mean over texts}, if the closed loop ran."""
    if losses is None or "kl_mean" not in losses.table:
        return {}
    asked = with_common_budgets(_asked(frame, size).drop(columns="share", errors="ignore"))
    asked = asked.drop_duplicates(["label", *WHERE])[["label", *WHERE]]
    both = asked.merge(losses.table, on=["label", *WHERE]).dropna(subset="kl_mean")
    return both.groupby("label")["kl_mean"].mean().to_dict()


def _figure(table: pd.DataFrame, note: str, width: float):
    figure = new_figure(width)
    axes = figure.subplots()
    shown = table.dropna(subset=["loss"])
    if shown.empty:
        draw_empty_note(axes)
        finish(figure, [], [], note, 1.0)
        return figure
    sizes = list(dict.fromkeys(shown["size"]))
    first = shown.groupby("name")["loss"].mean().sort_values(ascending=False)
    places = {name: place for place, name in enumerate(first.index)}
    handles = []
    for number, (size, marker) in enumerate(zip(sizes, "osD^v", strict=False)):
        own = shown[shown["size"] == size]
        colour = COLOURS[number]
        heights = [places[name] + 0.18 * (number - (len(sizes) - 1) / 2) for name in own["name"]]
        axes.hlines(heights, own["low"], own["high"], color=colour, linewidth=0.8)
        faces = [ORACLE_COLOURS[1] if ceiling else colour for ceiling in own["ceiling"]]
        axes.scatter(own["loss"], heights, color=faces, marker=marker, s=9, zorder=3)
        handles.append(axes.plot([], [], marker, color=colour, markersize=3.5)[0])
    axes.set_xscale("log")
    plain_log(axes.xaxis, subs_for(shown["loss"]))
    names = list(places)
    set_rows(axes, names, width)
    axes.set_ylim(-0.7, len(places) - 0.3)
    axes.set_xlabel("\n".join(wrap(axis_words(shown), LETTERS[width])))
    finish(figure, handles, sizes, note, EDGE + ROW_HEIGHT * len(places), below=BELOW[width])
    set_left(figure, names)
    return figure


def axis_words(table: pd.DataFrame) -> str:
    """The measure that ranks a table, with its unit if it has one."""
    measures = list(dict.fromkeys(table["measure"]))
    units = {NATS: " [nats a token]"}
    return "; ".join(f"{words_of(table, each)}{units.get(each, '')}" for each in measures)


def _note(frame: pd.DataFrame) -> str:
    notes = " ".join(replay_note(rows) for _, rows in by_trace(frame))
    return f"{notes} {BAND_NOTE.replace('Bands', 'Bars')} Grey: ceilings, which see what no cache can."


def _caption(table: pd.DataFrame) -> str:
    texts = []
    for size, own in table[~table["ceiling"].astype(bool)].groupby("size", sort=False):
        ranked = own.dropna(subset=["loss"])
        if len(ranked):
            more = int(ranked["decided"].fillna(value=False).astype(bool).sum())
            best = f"{ranked['name'].iloc[0]} {ranked['loss'].iloc[0]:.3g}"
            texts.append(f"{size}: {best} of {count(len(ranked), 'method')}, {more} are significantly worse")
    return "; ".join(texts) + "." if texts else "Nothing was replayed."
