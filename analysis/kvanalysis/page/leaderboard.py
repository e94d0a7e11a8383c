"""One self-contained page that ranks every method at equal sizes, streaming and one-shot methods
separately."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

import pandas as pd
from kvbase.files import write_atomic

from ..answer.measures import DEFAULT, NATS
from ..drawing.saving import FigureResult, SavedFigure
from ..errors import FigureError
from ..figures.config import FigureConfig
from ..figures.context import Context
from ..figures.make import make_figure
from ..figures.steps import RunOptions
from ..plots.run.leaderboard import axis_words
from ..stats.format import ABSENT, interval, percent, significant
from .html import (
    Html,
    anchor,
    contents,
    document,
    facts,
    folded,
    note,
    paragraph,
    plain_table,
    section,
    sortable_table,
)
from .pictures import Album
from .provenance import config_text, data_facts, data_text, meta_facts, own_facts, run_date
from .terms import LIMITS_TITLE, TERMS, limits

KIND = "leaderboard"
ABSENT_TITLE = "Methods without a row here"
HEADER = ("rank", "method", "% stored", "% read", "ranked by", "95 % interval", "significant",
          "predicted nats", "distance", "error", "measured nats", "how")  # fmt: skip
COLUMNS = (
    ("rank", "By the column “ranked by”. Ceilings, which see what no cache can, have no rank."),
    (
        "% stored, % read",
        "Bytes held, at the peak or after the prompt’s cut as the table’s title says, and bytes read in a"
        " step, over those of the full cache.",
    ),
    (
        "ranked by, 95 % interval",
        "The measure that the line above each table names: predicted nats if the trace holds a gradient of"
        " all layers, else the squared cosine distance. Lower is better.",
    ),
    (
        "significant",
        "Whether it is significantly worse than the first of its table: it cannot be the best, with 95 %"
        " confidence for the whole table (by distance, paired t tests of the logarithm of the ratio over"
        " layers; multiple comparisons with the best).",
    ),
    (
        "predicted nats",
        "KL divergence in nats a token that the errors of these layers cost the model, predicted from"
        " gradients in the trace, mean over texts; a lower bound if the trace lacks layers.",
    ),
    ("distance", "Squared cosine distance of the attention output, mean over heads."),
    ("error", "Mean relative error of the attention output, mean over heads."),
    (
        "measured nats",
        "KL divergence of the model itself, where `kvreplay confirm` ran on the step’s folder.",
    ),
)


def make_leaderboard(config: FigureConfig, out: Path, asked: RunOptions) -> Path:
    """Replays the missing cells of a `leaderboard` configuration into `out` and draws it; returns the page,
    OUT/leaderboard.html. Raises FigureError, ResultsError."""
    if config.kind != KIND:
        raise FigureError(f"{config.path}: figure.kind is {config.kind}; a leaderboard has kind: {KIND}")
    drawn = make_figure(config, out, asked)
    context = Context(config, out, list(asked.traces) or config.traces, asked.quick)
    return write_atomic(out / "leaderboard.html", render(context, drawn, drawn.table, out))


def render(context: Context, drawn: FigureResult, table: pd.DataFrame, folder: Path) -> str:
    """The page as text; links are relative to `folder`."""
    album = Album(drawn.figures, folder)
    steps = list(dict.fromkeys(table["step"]))
    frames = {step: context.frame(step) for step in steps}
    first = frames[steps[0]]
    titles = [_option(context, "titles").get(step, step) for step in steps]
    boards = [
        section(title, *_step(context, table[table["step"] == step], album, picture))
        for step, title, picture in zip(steps, titles, drawn.figures, strict=True)
    ]
    absent = plain_table(("method", "why"), list(_option(context, "absent").items()))
    cells = sum(map(len, frames.values()))
    named = [*titles, ABSENT_TITLE, "Provenance"]
    return document(
        f"kvreplay · {context.config.title}",
        [
            f"<h1>{escape(context.config.title)}</h1>",
            paragraph(f"{data_text(first)} · {cells} cells · {run_date(first.attrs['meta'])}", "lead"),
            note(LIMITS_TITLE, limits(data_text(first))),
            album.note(),
            contents([(title, anchor(title), []) for title in named]),
            plain_table(("column", "meaning"), COLUMNS),
            *boards,
            section(ABSENT_TITLE, absent),
            section("Provenance", *_provenance(frames)),
        ],
    )


def _option(context: Context, name: str) -> dict[str, str]:
    return context.config.options.get(name, {})


def _step(context: Context, table: pd.DataFrame, album: Album, picture: SavedFigure) -> Iterator[str]:
    """Parts: a note on the step, a table for each size, the picture of all."""
    said = _option(context, "notes").get(table["step"].iloc[0])
    if said:
        yield paragraph(said)
    for size, own in table.groupby("size", sort=False):
        yield from _board(size, own)
    yield album.show(picture, picture.caption)


def _board(size: str, own: pd.DataFrame) -> list[Html]:
    shown = [name for name in HEADER if name not in _empty(own)]
    rows = [[cells[name] for name in shown] for cells in _cells(own)]
    measure = axis_words(own)
    return [
        Html(f"<h3>At {escape(size)}</h3>"),
        paragraph(f"Ranked by: {measure}."),
        sortable_table(shown, rows),
    ]


def _empty(own: pd.DataFrame) -> set[str]:
    """Columns without information."""
    held = {"% read": "read", "measured nats": "measured", "predicted nats": "nats", "significant": "decided"}
    empty = {name for name, column in held.items() if own[column].isna().all()}
    repeated = {NATS: "predicted nats", DEFAULT: "distance"}
    empty |= {repeated.get(measure, "") for measure in own["measure"]}
    return empty | (set() if own["how"].fillna("").any() else {"how"})


def _cells(own: pd.DataFrame) -> list[dict[str, tuple[str, object]]]:
    cells, rank = [], 0
    for row in own.itertuples():
        ranked = pd.notna(row.loss) and not row.ceiling
        rank += ranked
        more = ABSENT if not ranked or rank == 1 else "yes" if row.decided else "no"
        method = f"{row.name} (ceiling)" if row.ceiling else row.name
        cells.append(
            {
                "rank": (str(rank), rank) if ranked else (ABSENT, None),
                "method": (method, method),
                "% stored": _number(row.stored, percent), "% read": _number(row.read, percent),
                "ranked by": _number(row.loss), "95 % interval": (interval(row.low, row.high), _key(row.low)),
                "significant": (more, more), "predicted nats": _number(row.nats),
                "distance": _number(row.distance), "error": _number(row.error),
                "measured nats": _number(row.measured), "how": (row.how or "", row.how or ""),
            }
        )  # fmt: skip
    return cells


def _number(value: float, show=significant) -> tuple[str, object]:
    return show(value), _key(value)


def _key(value: float) -> float | None:
    return None if pd.isna(value) else float(value)


def _provenance(frames: dict[str, pd.DataFrame]) -> list[str]:
    parts = []
    for step, frame in frames.items():
        meta = frame.attrs.get("meta", {})
        pairs = [pair for _, rows in frame.groupby("trace_id", sort=True) for pair in data_facts(rows)]
        parts.append(
            folded(f"Step {step}", facts(pairs + meta_facts(meta)), f"<pre>{escape(config_text(meta))}</pre>")
        )
    terms = plain_table(("word", "meaning"), [(name, Html(text)) for name, text in TERMS])
    return [*parts, facts(own_facts()), folded("Words", terms)]
