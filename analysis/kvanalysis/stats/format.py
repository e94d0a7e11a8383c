"""Numbers and cells as people read them; the table for the page and the terminal."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

ABSENT = "–"
LEFT = (  # columns of text
    *("trace", "format", "method", "notes", "measure", "over layers", "needs", "scope", "text", "family"),
    *("less error", "less loss"),
)
KIB = 1024


ROUNDING = 1e-20  # the square of a rounding error, which differs from machine to machine


def significant(value):
    """Three significant digits with their zeros: 0.150, 12.3, 1230; very small numbers as 1.2e-05."""
    if pd.isna(value):
        return ABSENT
    if abs(value) < ROUNDING:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.1e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def whole(value):
    return ABSENT if pd.isna(value) else f"{value:.0f}"


def kibibytes(value):
    return ABSENT if pd.isna(value) else f"{value / KIB:.1f}"


def percent(value):
    return ABSENT if pd.isna(value) else f"{100 * value:.1f}"


def interval(low, high):
    return ABSENT if pd.isna(low) else f"{significant(low)} … {significant(high)}"


def table_cells(summary):
    """(header, rows) of the summary table; a cell is (text, sort key or None if it sorts last).

    The column of trace ids is only shown if there are several traces.
    """
    several = summary["trace_id"].nunique() > 1
    header = [name for name, _, _ in _COLUMNS]
    rows = [[(show(row), _sort_key(key(row))) for _, show, key in _COLUMNS] for _, row in summary.iterrows()]
    if several:
        header = ["trace", *header]
        rows = [[(trace[:8], trace), *cells] for trace, cells in zip(summary["trace_id"], rows, strict=True)]
    return header, rows


def aligned(header, rows):
    """The table as lines for a terminal: the first columns aligned left, numbers right."""
    texts = [header] + [[text for text, _ in row] for row in rows]
    widths = [max(len(line[i]) for line in texts) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if name in LEFT else text.rjust(width)
            for text, width, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in texts
    )


def markdown(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """The table in Markdown, one line per row; None becomes ABSENT."""
    lines = [map(_markdown_cell, header), ["---"] * len(header), *(map(_markdown_cell, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _markdown_cell(value):
    """Replaces bars and line breaks, which would end the cell."""
    return ABSENT if value is None else str(value).replace("\n", " ").replace("|", "\\|")


def _sort_key(value):
    return None if pd.isna(value) else value


def _plain(show, name):
    return lambda row: show(row[name]), lambda row: row[name]


_COLUMNS = (
    ("method", *_plain(str, "label")),
    ("budget", *_plain(whole, "budget_tokens")),
    ("distance", *_plain(significant, "cosine_distance_sq")),
    (
        "95 % interval",
        lambda row: interval(row["distance_low"], row["distance_high"]),
        lambda row: row["distance_low"],
    ),
    ("rel. error", *_plain(significant, "rel_err_out_mean")),
    (
        "95 % interval",
        lambda row: interval(row["rel_err_low"], row["rel_err_high"]),
        lambda row: row["rel_err_low"],
    ),
    ("ε spectral", *_plain(significant, "eps_spectral_mean")),
    ("partition err.", *_plain(significant, "partition_err_mean")),
    ("kept mass", *_plain(significant, "kept_mass_mean")),
    ("peak kept", *_plain(whole, "peak_kept_tokens")),
    ("KiB/head", *_plain(kibibytes, "total_bytes")),
    ("% of prompt", *_plain(percent, "prompt_ratio")),
    ("% of full", *_plain(percent, "bytes_ratio")),
    ("heads", *_plain(whole, "n_units")),
    ("rows used", lambda row: f"{row['n_rows']}/{row['n_cells']}", lambda row: row["n_rows"]),
    ("notes", *_plain(str, "notes")),
)
