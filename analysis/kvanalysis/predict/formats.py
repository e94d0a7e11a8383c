"""The model's own loss by row format, in the measures that llama.cpp prints."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..data.confirm_csv import draw_variance
from ..data.confirmed import CONFIRM, whole_rows
from ..data.labels import format_names
from ..errors import ResultsError
from ..stats.clipping import CLIPPED, FLUSHED, coded_shares
from ..stats.format import ABSENT, kibibytes, percent, significant, whole
from ..stats.intervals import used_rows
from ..stats.summary import summarise
from ..stats.words import count
from .instances import settings
from .tables import require_confirmed

AT = ["trace_id", "label", "budget_tokens"]
MEANS = ["kld_mean", "kld_median", "kld_p99", "same_top"]
ERRORS = {"kld_mean": "kld_mean_se", "same_top": "same_top_se"}
SIZES = ["total_bytes", "bytes_ratio"]


def format_losses(frame: pd.DataFrame, out: Path) -> pd.DataFrame:
    """A row for each label and budget of `load`'s table of the folder `out` that the closed loop finished,
    the lowest KLD of a budget first: AT, `format`, SIZES (means over heads), MEANS with the standard errors
    of ERRORS, CLIPPED, FLUSHED and `n_texts`.

    Numbers are means over texts, quantiles too; seeds are averaged first. `attrs["left_out"]` counts finished
    instances that an older version confirmed, or with another selection or other layers. Raises ResultsError
    if none is left.
    """
    finished = whole_rows(require_confirmed(frame, out).losses)
    measured = finished[finished["kld_mean"].notna()]
    if measured.empty:
        why = "holds no finished instance" if finished.empty else "was written by an older version"
        raise ResultsError(f"{out / CONFIRM}: {why}; run `kvreplay confirm {out} --model M --force`")
    selection, layers, _ = settings(measured)[0]
    rows = measured[(measured["selection"] == selection) & (measured["layers"] == layers)]
    table = _over_texts(rows).merge(_of_run(frame), on=AT, how="left")
    table = table.sort_values(["trace_id", "budget_tokens", "kld_mean"], kind="stable", na_position="first")
    table.attrs["left_out"] = len(finished) - len(rows)
    return table.reset_index(drop=True)


def _over_texts(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, then over texts, whose errors are independent."""
    draws = draw_variance(rows, "kl_mean")
    rows = rows.assign(draws=draws, **{error: rows[error] ** 2 for error in ERRORS.values()})
    by_text = rows.groupby([*AT, "prompt"], dropna=False, sort=False)
    texts = by_text[[*MEANS, *ERRORS.values(), "draws"]].mean()
    # Seeds share the rows of a text, not its draws.
    texts["kld_mean_se"] += texts.pop("draws") / by_text.size()
    groups = texts.groupby(level=AT, dropna=False, sort=False)
    table, n_texts = groups.mean(), groups.size()
    for error in ERRORS.values():  # a text with one row has none
        table[error] = np.sqrt(table[error] / n_texts).where(groups[error].count() == n_texts)
    return table.assign(n_texts=n_texts).reset_index()


def _of_run(frame: pd.DataFrame) -> pd.DataFrame:
    """What the run itself says: AT, `format`, SIZES, CLIPPED and FLUSHED."""
    used = used_rows(frame)
    used = used[AT].assign(format=format_names(used), **coded_shares(used))
    groups = used.groupby(AT, dropna=False, sort=False)
    found = groups[[CLIPPED, FLUSHED]].mean().assign(format=groups["format"].first()).reset_index()
    return summarise(frame)[[*AT, *SIZES]].merge(found, on=AT)


def format_notes(table: pd.DataFrame) -> list[str]:
    """The basis of the numbers, and what is not in the table."""
    least, most = table["n_texts"].min(), table["n_texts"].max()
    texts = count(most, "text") if least == most else f"{least} to {most} texts"
    basis = (
        "KLD: KL divergence of the compressed prediction from the full one, nats a token; means over"
        f" {texts}; ±: standard error over rows and draws; bytes at the peak; clipped and flushed: shares of"
        " the numbers that the format codes"
    )
    left_out = table.attrs["left_out"]
    if not left_out:
        return [basis]
    why = "confirmed by an older version, or with another selection or other layers"
    return [basis, f"left out: {count(left_out, 'instance')}, {why}"]


def format_cells(table: pd.DataFrame) -> tuple[list[str], list[list[tuple[str, Any]]]]:
    """(header, rows) for `stats.format.aligned`; a cell is (text, sort key)."""
    several = table["trace_id"].nunique() > 1
    header = ["format", "method", "budget", "KiB/head", "% of full", "KLD mean", "median", "99 %",
              "% same top", "% clipped", "% flushed"]  # fmt: skip
    trace = [[(row.trace_id[:8], row.trace_id)] if several else [] for row in table.itertuples()]
    rows = [[*first, *_cells(row)] for first, row in zip(trace, table.itertuples(), strict=True)]
    return (["trace", *header] if several else header), rows


def _cells(row: Any) -> list[tuple[str, Any]]:
    same_top = 100 * row.same_top, 100 * row.same_top_se
    return [
        (row.format, row.format),
        (row.label, row.label),
        _number(row.budget_tokens, whole),
        _number(row.total_bytes, kibibytes),
        _number(row.bytes_ratio, percent),
        _with_error(row.kld_mean, row.kld_mean_se),
        _number(row.kld_median),
        _number(row.kld_p99),
        _with_error(*same_top),
        _number(getattr(row, CLIPPED), _share),
        _number(getattr(row, FLUSHED), _share),
    ]


def _number(value: Any, show: Any = significant) -> tuple[str, Any]:
    return show(value), None if pd.isna(value) else float(value)


def _share(value: float) -> str:
    return ABSENT if pd.isna(value) else significant(100 * value)


def _with_error(value: float, error: float) -> tuple[str, float]:
    return significant(value) + ("" if pd.isna(error) else f" ± {significant(error)}"), value
