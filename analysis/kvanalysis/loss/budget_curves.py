"""The loss that each kv head's errors cost the model at each budget: curves from the table of a run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..data.extras import extra
from ..errors import ConfigError, ResultsError
from .marginals import Curves, convex, falling

KL = "kl_head_mean"
HEAD = ["layer", "kv_head"]
SOURCE, ONESHOT = "source", "oneshot"
SHARES = (
    "allocated_tokens",
    "layer_budget",
)  # extras of cells that share their budget with other heads or layers
GRADIENT = "record the trace with `kvreplay record --with-gradient 8` and run again"


@dataclass(frozen=True)
class MethodCurves:
    """A method's heads in the order of (layer, kv head). `heads`: the columns layer and kv_head [H];
    `measured` [H, K]: the means that `curves` was made from; `rates`, `fixed` [H]: a head takes
    `fixed + rates * tokens` bytes; `row_format`: as the parameters have it."""

    heads: pd.DataFrame
    curves: Curves
    measured: np.ndarray
    rates: np.ndarray
    fixed: np.ndarray
    row_format: str | dict

    def bytes_at(self, tokens: np.ndarray) -> np.ndarray:
        return self.fixed + self.rates * tokens


def rows_of(frame: pd.DataFrame, label: str, prompts: Sequence[str] | None) -> pd.DataFrame:
    """The finished rows of a method by its label, on these prompts (None: the only one). Raises ConfigError,
    or ResultsError if the run holds no loss."""
    rows = frame[frame["label"] == label]
    if rows.empty:
        raise ConfigError(f"--method {label}: the run has only {', '.join(frame['label'].unique())}")
    there = list(rows["prompt"].unique())
    if prompts is None and len(there) > 1:
        raise ConfigError(f"several prompts: choose with --prompt one or more of {', '.join(there)}")
    for name in prompts or ():
        if name not in there:
            raise ConfigError(f"--prompt {name}: the run has only {', '.join(there)}")
    rows = rows[rows["prompt"].isin(prompts or there) & (rows["status"] == "ok")]
    if rows["trace_id"].nunique() > 1:
        raise ConfigError(
            "prompts of several traces: heads are only compared within one trace; use a run of one trace"
        )
    if KL not in rows or rows[KL].isna().all():
        raise ResultsError(f"{label}: no {KL} in the table: {GRADIENT}")
    _refuse_shared(rows, label)
    return rows


def _refuse_shared(rows, label):
    params = rows["params"].iloc[0]
    if any(extra(rows, name).notna().any() for name in SHARES):
        raise ConfigError(
            f"--method {label}: shares its budget over heads or layers; choose a method with equal budgets"
        )
    if params.get("gqa.level") == "layer":
        raise ConfigError(f"--method {label}: gqa.level layer uses one budget for all kv heads of a layer")


def method_curves(frame: pd.DataFrame, label: str, prompts: Sequence[str] | None) -> MethodCurves:
    """The curves of a method, means over seeds and over the prompts. The last point is the full cache: the
    prompt for a one-shot method, all tokens for a streaming one. Its loss is zero in the row format of the
    trace; in another one it is the loss of `exact` in that format. If the run lacks `exact` there, the
    largest replayed budget is the last point. Raises ConfigError, ResultsError."""
    rows = rows_of(frame, label, prompts)
    if rows["budget_tokens"].isna().all():
        return _one_point(rows, "total_bytes")
    kl = _by_budget(rows, KL)
    full, lost = _full_tokens(rows), _full_cache_loss(frame, rows, kl.index)
    # A budget above the full cache holds no more than the full cache.
    tokens, measured = np.minimum(kl.columns.to_numpy(dtype=np.int64), full), kl.to_numpy()
    tokens, first = np.unique(tokens, return_index=True)
    measured = measured[:, first]
    if len(tokens) < 2:
        raise ConfigError(
            f"--method {label}: a curve needs at least two budgets at which all heads were replayed; the run"
            f" has {len(tokens)} up to the full cache: add budgets to `budget: {{tokens: [...]}}`"
        )
    rates, fixed = _bytes_line(tokens, _by_budget(rows, "total_bytes")[kl.columns[first]].to_numpy())
    if lost is not None and full > tokens[-1]:
        tokens, measured = np.append(tokens, full), np.column_stack([measured, lost])
    smooth = np.array([convex(tokens, falling(values)) for values in measured])
    curves = Curves(np.broadcast_to(tokens, measured.shape), smooth)
    return MethodCurves(_heads(kl.index), curves, measured, rates, fixed, row_format(rows))


def full_cache(frame: pd.DataFrame, like: MethodCurves, label: str, prompts) -> MethodCurves:
    """The heads of `like` with every token in the row format of the trace, so with zero loss."""
    rows = rows_of(frame, label, prompts)
    full = rows.groupby(HEAD)["full_bytes"].mean().to_numpy()
    tokens = np.full((len(full), 1), _full_tokens(rows))
    lost = np.zeros(tokens.shape)
    return MethodCurves(like.heads, Curves(tokens, lost), lost, np.zeros(len(full)), full, SOURCE)


def fixed_cache(frame: pd.DataFrame, label: str, prompts: Sequence[str] | None, held: str) -> MethodCurves:
    """The heads of a method without a budget, or replayed at one: curves of one point, bytes from the column
    `held`. Raises ConfigError, ResultsError."""
    rows = rows_of(frame, label, prompts)
    if rows["budget_tokens"].nunique() > 1:
        raise ConfigError(
            f"{label} was replayed at several budgets: with --budget, tokens are divided as well; without it,"
            " use a run of one budget"
        )
    return _one_point(rows, held)


def row_format(rows: pd.DataFrame) -> str | dict:
    return rows["params"].iloc[0].get("row_format", SOURCE)


def siblings(frame: pd.DataFrame, label: str) -> list[str]:
    """Labels of the method with equal parameters except for the row format, in the order of the table,
    this label included."""
    known = frame.drop_duplicates("label")
    this = known[known["label"] == label].iloc[0]
    alike = [
        row.method == this["method"] and _but_format(row.given) == _but_format(this["given"])
        for row in known.itertuples()
    ]
    return list(known.loc[alike, "label"])


def _but_format(given):
    return json.dumps({name: value for name, value in given.items() if name != "row_format"}, sort_keys=True)


def _one_point(rows, column):
    means = rows.groupby(HEAD)[[KL, column]].mean()
    measured = means[[KL]].to_numpy()
    curves = Curves(np.full(measured.shape, _full_tokens(rows)), measured)
    held = means[column].to_numpy()
    return MethodCurves(_heads(means.index), curves, measured, np.zeros(len(held)), held, row_format(rows))


def _by_budget(rows, name):
    """[heads, budgets] means over seeds and prompts, at budgets that all heads have on all prompts."""
    cells = rows.groupby([*HEAD, "prompt", "budget_tokens"])[name].mean().unstack("budget_tokens")
    return cells.dropna(axis="columns").groupby(HEAD).mean()


def _heads(index):
    return index.to_frame(index=False).astype("int64")


def _bytes_line(tokens, held):
    """(bytes a token, constant bytes) [H] of each head: the line nearest to the bytes at its budgets."""
    centred = tokens - tokens.mean()
    rates = held @ centred / (centred @ centred)
    return rates, held.mean(axis=1) - rates * tokens.mean()


def _full_tokens(rows):
    name = "n_prefill" if rows["params"].iloc[0].get("phase") == ONESHOT else "n_tokens"
    found = rows[name].unique()
    if len(found) > 1:
        raise ConfigError(f"prompts of {', '.join(map(str, sorted(found)))} tokens: choose one with --prompt")
    return int(found[0])


def _full_cache_loss(frame, rows, heads):
    """[H] the loss of the full cache in the method's row format; None if the run does not have it."""
    if row_format(rows) == SOURCE:
        return np.zeros(len(heads))
    exact = frame[
        (frame["method"] == "exact")
        & (frame["status"] == "ok")
        & frame["prompt"].isin(rows["prompt"].unique())
    ]
    alike = exact["params"].map(lambda params: params.get("row_format") == row_format(rows))
    exact = exact[alike.astype(bool)]
    lost = exact.groupby(HEAD)[KL].mean().reindex(heads)
    return None if lost.isna().any() else lost.to_numpy()
