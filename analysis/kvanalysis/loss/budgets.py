"""Budgets that minimise the predicted loss: tokens for each kv head, a row format for each layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..errors import ConfigError
from .budget_curves import MethodCurves, full_cache, method_curves, rows_of, siblings
from .budget_formats import cheapest_formats
from .marginals import Curves, spend

FULL = "full"  # a layer that keeps everything in the row format of the trace


@dataclass(frozen=True)
class Budget:
    """The mean over heads in tokens, or the share in (0, 1] of the full cache's bytes; one of the two."""

    tokens: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.share is None):
            raise ConfigError("a budget is either tokens or a share of the full cache's bytes")

    def __str__(self) -> str:
        return f"{self.tokens:g}" if self.share is None else f"{100 * self.share:g}%"


@dataclass(frozen=True)
class Allocation:
    """The budget of each kv head. `table`: a row for each, in order: layer, kv_head, tokens, predicted_kl
    (nats a token caused by its errors alone), bytes, full_bytes, label (of the instance whose row format it
    has, or `full`) and row_format. `uniform_kl`: the predicted sum for one budget for all heads in the
    requested row format at as many tokens or bytes; None if there is none."""

    label: str
    method: str
    given: dict
    model: str
    trace_id: str
    prompts: list[str]
    budget: Budget
    table: pd.DataFrame
    uniform_kl: float | None

    @property
    def predicted_kl(self) -> float:
        """The sum over heads, nats a token."""
        return float(self.table["predicted_kl"].sum())


def allocate(
    frame: pd.DataFrame,
    label: str,
    budget: Budget,
    prompts: Sequence[str] | None = None,
    formats: bool = False,
) -> Allocation:
    """Tokens for each kv head with the smallest sum of predicted losses at a budget, from `load`'s table.

    `label`: a method instance as the tables name it, replayed at two or more budgets on a trace with a
    gradient. `prompts`: means over these; None: the only one. With `formats` each layer also chooses its row
    format, at equal bytes, among the full cache and the formats in which the run replayed the method. No head
    gets less than the smallest replayed budget. Raises ConfigError, ResultsError.
    """
    asked = method_curves(frame, label, prompts)
    rows = rows_of(frame, label, prompts)
    full = rows.groupby(["layer", "kv_head"])["full_bytes"].mean().to_numpy()
    if formats:
        table = _by_layer(frame, label, prompts, asked, _bytes_of(budget, asked, full))
    else:
        table = _one_format(asked, label, budget, full)
    first = rows.iloc[0]
    return Allocation(
        label, first["method"], first["given"], first["model"], first["trace_id"],
        list(rows["prompt"].unique()), budget, table.assign(full_bytes=full), _uniform(asked, budget, full),
    )  # fmt: skip


def _one_format(asked: MethodCurves, label: str, budget: Budget, full: np.ndarray) -> pd.DataFrame:
    if asked.curves.tokens.shape[1] == 1:
        raise ConfigError(
            f"--method {label}: takes no budget; with --formats, layers choose whether to use it"
        )
    tokens = asked.curves.tokens
    if budget.share is None:
        total = np.floor(budget.tokens * len(tokens) + 1e-9)
        _refuse_out_of_range(budget, total, "tokens", tokens)
        found = spend(asked.curves, np.ones(len(tokens)), total)
    else:
        total = budget.share * full.sum()
        _refuse_out_of_range(budget, total, "bytes", asked.bytes_at(tokens.T).T)
        found = spend(asked.curves, _costs(asked), total - asked.fixed.sum())
    return _table(asked, found, [label] * len(found), [asked.row_format] * len(found))


def _costs(curves: MethodCurves) -> np.ndarray:
    """[H] bytes per token; nearly zero if a head takes no more bytes with more tokens, as in a layer whose
    window is shorter than the budgets."""
    return np.maximum(curves.rates, 1e-9)


def _refuse_out_of_range(budget, total, unit, held):
    low, high = held[:, 0].sum(), held[:, -1].sum()
    if total < low:
        raise ConfigError(
            f"--budget {budget}: {total:.0f} {unit} in all, but the smallest replayed budgets take {low:.0f}:"
            " replay smaller ones, or raise it"
        )
    if total > high:
        raise ConfigError(
            f"--budget {budget}: {total:.0f} {unit} in all, but the largest known budgets take {high:.0f}:"
            " lower it"
        )


def _bytes_of(budget: Budget, asked: MethodCurves, full: np.ndarray) -> float:
    if budget.share is not None:
        return budget.share * float(full.sum())
    if asked.curves.tokens.shape[1] == 1:
        raise ConfigError(
            f"--budget {budget}: a method without a budget needs a share of the bytes, such as 25%"
        )
    return float(asked.bytes_at(np.full(len(full), budget.tokens)).sum())


def _by_layer(frame, label, prompts, asked, total) -> pd.DataFrame:
    labels = siblings(frame, label)
    options = [method_curves(frame, each, prompts) for each in labels]
    options.append(full_cache(frame, asked, label, prompts))
    for each, option in zip(labels, options, strict=False):
        if not option.heads.equals(asked.heads):
            raise ConfigError(f"--formats: {each} lacks layers or kv heads of {label}: replay it there")
    labels.append(FULL)
    chosen, _ = cheapest_formats(options, asked.heads["layer"].to_numpy(), total)
    parts = _chosen(options, chosen)
    tokens = spend(parts.curves, _costs(parts), total - parts.fixed.sum())
    names = [labels[each] for each in chosen]
    return _table(parts, tokens, names, [options[each].row_format for each in chosen])


def _chosen(options: Sequence[MethodCurves], chosen: np.ndarray) -> MethodCurves:
    """The heads, each with its option in `chosen` [H]; short curves repeat their last point."""
    points = max(option.curves.tokens.shape[1] for option in options)

    def taken(arrays):
        return np.array([arrays[option][head] for head, option in enumerate(chosen)])

    def padded(array):
        return np.pad(array, ((0, 0), (0, points - array.shape[1])), mode="edge")

    tokens = taken([padded(option.curves.tokens) for option in options])
    kl = taken([padded(option.curves.kl) for option in options])
    rates, fixed = (taken([getattr(option, name) for option in options]) for name in ("rates", "fixed"))
    return MethodCurves(options[0].heads, Curves(tokens, kl), kl, rates, fixed, "")


def _table(curves: MethodCurves, tokens, labels, formats) -> pd.DataFrame:
    return curves.heads.assign(
        tokens=tokens,
        predicted_kl=curves.curves.at(tokens),
        bytes=np.rint(curves.bytes_at(tokens)).astype(np.int64),
        label=labels,
        row_format=formats,
    )


def _uniform(asked: MethodCurves, budget: Budget, full: np.ndarray) -> float | None:
    """The predicted loss of one budget for all heads at as many tokens or bytes."""
    tokens = budget.tokens
    if tokens is None:
        rate = asked.rates.sum()
        tokens = (budget.share * full.sum() - asked.fixed.sum()) / rate if rate > 0 else np.nan
    low, high = asked.curves.tokens[:, 0].max(), asked.curves.tokens[:, -1].min()
    if not low <= tokens <= high:
        return None
    return float(asked.curves.at(np.full(len(full), tokens)).sum())
