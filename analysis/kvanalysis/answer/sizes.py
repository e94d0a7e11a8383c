"""Which bytes are held against those of the full cache where methods are ranked at equal bytes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    import pandas as pd

PEAK, MEAN, PROMPT = "peak", "mean", "prompt"


@dataclass(frozen=True)
class Size:
    """`held` and `full`: columns of results.csv whose sums are divided; `of`: what a sentence takes a share
    of; `short`: the same in a reason; `column`: the same over a column."""

    name: str
    held: str
    full: str
    of: str
    short: str
    column: str


SIZES = {
    size.name: size
    for size in (
        Size(
            PEAK,
            "total_bytes",
            "full_bytes",
            "the full cache’s bytes at the peak",
            "the full cache",
            "% of full",
        ),
        Size(
            MEAN,
            "mean_bytes",
            "mean_full_bytes",
            "the full cache’s bytes on average over the steps",
            "the full cache on average",
            "mean % of full",
        ),
        Size(
            PROMPT,
            "prompt_bytes",
            "prompt_full_bytes",
            "the prompt’s full cache (bytes after the cut)",
            "the prompt’s full cache",
            "% of prompt",
        ),
    )
}


def size_of(rows: "pd.DataFrame", of: str) -> Size:
    """The size by its name, where finished rows have its numbers. Raises UserError with the remedy."""
    if of not in SIZES:
        raise UserError(f"--of {of}: write {', '.join([*SIZES][:-1])} or {[*SIZES][-1]}")
    size = SIZES[of]
    if {size.held, size.full} <= set(rows) and rows[[size.held, size.full]].notna().all(axis=None):
        return size
    if of == PROMPT and (rows["n_prefill"] == 0).any():
        raise UserError(
            "--of prompt: these results have no prompt (n_prefill is 0): replay with replay.prefill, the"
            " tokens of the prompt call (--prefill N)"
        )
    raise UserError(
        f"--of {of}: these results lack the column {size.held} or have cells without it, as those of an older"
        " version: replay them into a new folder"
    )


def shares_are_of(meta: dict[str, Any], of: str) -> bool:
    """Whether the column `budget_share` of a table holds shares of these bytes, as its results.meta.json
    says: every run that gave cells was asked for shares of them, or for none. The peak is the default."""
    return _asked(meta) == {of}


def asked_of(meta: dict[str, Any]) -> str:
    """Which bytes the shares are of for which a table's runs were asked; the peak where they do not agree."""
    asked = _asked(meta)
    return asked.pop() if len(asked) == 1 else PEAK


def _asked(meta: dict[str, Any]) -> set[str]:
    runs = [one for run in meta.get("runs", [meta]) for one in (run, *run.get("earlier_runs", []))]
    return {run.get("budget_of") or _of_config(run.get("config")) for run in runs} - {None} or {PEAK}


def _of_config(config: Any) -> str | None:
    budget = config.get("budget") if isinstance(config, dict) else None
    return budget.get("of") if isinstance(budget, dict) else None
