"""What a figure leaves on disk: PNG, PDF and the CSV behind them; and the words that stand below it."""

from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from .plotstyle import DPI
from .stats import BOOTSTRAP_SEED, LEVEL, RESAMPLES, UNIT


@dataclass(frozen=True)
class Drawn:
    """One figure on disk; `narrow` is the same picture for a column or a phone, if there is one.

    `caption` is what a reader must know beside the picture: numbers, and how to read it. `table` is a
    (header, rows) for `page.sortable_table`, where the numbers deserve one.
    """

    title: str
    png: Path
    csv: Path
    narrow: Path | None = None
    caption: str = ""
    table: tuple | None = None


@dataclass(frozen=True)
class Verdict:
    """What a run says about one claim of a paper.

    `outcome` is one of OUTCOMES; `numbers` are the measured ones that decide, as text.
    """

    claim: str
    source: str
    how: str
    outcome: str
    numbers: str = ""

    def __post_init__(self):
        assert self.outcome in OUTCOMES, self.outcome


HOLDS, FAILS, MIXED, UNTESTABLE = "holds", "does not hold", "mixed", "not testable offline"
OUTCOMES = (HOLDS, FAILS, MIXED, UNTESTABLE)


@dataclass(frozen=True)
class Plot:
    """What a renderer returns."""

    figures: list[Drawn]
    verdicts: list[Verdict] = field(default_factory=list)


def save(figure, stem):
    """PNG and PDF without dates, so that equal results give equal files; returns the PNG's path."""
    figure.savefig(f"{stem}.pdf", metadata={"CreationDate": None})
    figure.savefig(f"{stem}.png", dpi=DPI, metadata={"Software": None})
    _few_colours(f"{stem}.png")
    return Path(f"{stem}.png")


def _few_colours(png):
    """A palette of 256 colours makes a picture of lines and text three times smaller: pages embed them."""
    with Image.open(png) as picture:
        small = picture.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(png, optimize=True, dpi=(DPI, DPI))


def write_csv(table, path):
    """The numbers behind a figure, nine significant digits; returns the path."""
    table.to_csv(path, index=False, float_format="%.9g")
    return Path(path)


def count(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def replay_note(rows):
    """What was compared, over how many heads and texts. `rows`: those of one trace, as `load` gives them."""
    heads, texts = len(rows.drop_duplicates(UNIT)), rows["prompt"].nunique()
    model = rows["model"].iloc[0] or "unnamed model"
    return (
        f"Teacher-forced replay of {count(heads, 'kv head')} from {count(texts, 'text')} of trace"
        f" {rows['trace_id'].iloc[0][:12]} ({model}); an error never changes later tokens or layers."
    )


def oneshot_notes(rows):
    """A sentence that names the labels of one-shot methods, [] if there are none."""
    pairs = zip(rows["label"], rows["params"], strict=True)
    oneshot = sorted({label for label, params in pairs if params.get("phase") == "oneshot"})
    return [f"One cut, every later token kept (compare by bytes): {', '.join(oneshot)}."] if oneshot else []


BAND_NOTE = (
    f"Bands: {LEVEL:.0%} bootstrap over heads, seeds averaged first"
    f" ({RESAMPLES} resamples, seed {BOOTSTRAP_SEED})."
)
