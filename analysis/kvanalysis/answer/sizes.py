"""The bytes that are compared with the full cache's where methods are ranked at equal bytes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

PEAK, MEAN, PROMPT = "peak", "mean", "prompt"


@dataclass(frozen=True)
class Size:
    """`held` and `full`: columns of results.csv whose sums are divided. `of`: the denominator as a sentence
    names it; `short`: as a reason names it; `column`: a table header for the share."""

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
    """The size of this name. Raises ConfigError with the remedy if finished rows lack its numbers."""
    if of not in SIZES:
        raise ConfigError(f"--of {of}: write {', '.join([*SIZES][:-1])} or {[*SIZES][-1]}")
    size = SIZES[of]
    if {size.held, size.full} <= set(rows) and rows[[size.held, size.full]].notna().all(axis=None):
        return size
    if of == PROMPT and (rows["n_prefill"] == 0).any():
        raise ConfigError(
            "--of prompt: these results have no prompt (n_prefill is 0): replay with replay.prefill, the"
            " tokens of the prompt call (--prefill N)"
        )
    raise ConfigError(
        f"--of {of}: these results lack the column {size.held}, or it is empty in some cells, as in results"
        " of an older version: replay them into a new folder"
    )


def is_share_of(meta: dict[str, Any], of: str) -> bool:
    """Whether the column `budget_share` of a table holds shares of these bytes, according to its
    results.meta.json: every run was asked for shares of them, or for no shares. The default is the peak."""
    return _asked(meta) == {of}


def default_size(frame: "pd.DataFrame") -> str:
    """The bytes that are compared by default: the bytes that the runs were asked for shares of, else the
    prompt's after its cut, as papers count them; the peak if runs disagree or a row has no prompt."""
    asked = _explicit(frame.attrs.get("meta", {}))
    if asked:
        return asked.pop() if len(asked) == 1 else PEAK
    prompt = SIZES[PROMPT]
    counted = {prompt.held, prompt.full} <= set(frame) and (frame["status"] == "ok").any()
    rows = frame[frame["status"] == "ok"] if counted else frame
    return PROMPT if counted and rows[[prompt.held, prompt.full]].notna().all(axis=None) else PEAK


def _explicit(meta: dict[str, Any]) -> set[str]:
    runs = [one for run in meta.get("runs", [meta]) for one in (run, *run.get("earlier_runs", []))]
    return {run.get("budget_of") or _of_config(run.get("config")) for run in runs} - {None}


def _asked(meta: dict[str, Any]) -> set[str]:
    return _explicit(meta) or {PEAK}


def _of_config(config: Any) -> str | None:
    budget = config.get("budget") if isinstance(config, dict) else None
    return budget.get("of") if isinstance(budget, dict) else None
