"""A row format for each kv head: the lowest predicted loss at the bytes that one format for all takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..data.row_formats import is_choice
from ..errors import ConfigError
from .budget_curves import MethodCurves, fixed_cache, rows_of, siblings
from .budget_formats import cheapest_formats, least_loss, spend_rest

BYTES = "final_bytes"  # what a head's cache takes after the last row; a run's bytes are the sum over heads


@dataclass(frozen=True)
class Uniform:
    """One row format for all heads: its label, bytes and predicted nats a token, sums over heads."""

    label: str
    row_format: str | dict
    bytes: int
    predicted_kl: float


@dataclass(frozen=True)
class FormatChoice:
    """The row format of each kv head at `limit` bytes for all. `table`: a row for each head, in order:
    layer, kv_head, predicted_kl (nats a token caused by its errors alone), bytes, label, row_format.
    `least`: no choice among these formats loses less. `like`: the format whose bytes are the limit, if the
    limit is that of a format. `uniform`: the best single format for all heads at no more bytes; None if all
    take more."""

    method: str
    given: dict
    model: str
    trace_id: str
    prompts: list[str]
    limit: float
    like: Uniform | None
    uniform: Uniform | None
    table: pd.DataFrame
    least: float

    @property
    def predicted_kl(self) -> float:
        """The sum over heads, nats a token."""
        return float(self.table["predicted_kl"].sum())

    @property
    def bytes(self) -> int:
        return int(self.table["bytes"].sum())


@dataclass(frozen=True)
class Formats:
    """The formats in which a run replayed the heads of one method at one budget: `labels` and `options`, one
    each, over the same heads; `first`: a row of the run."""

    labels: list[str]
    options: list[MethodCurves]
    first: pd.Series
    prompts: list[str]

    def uniforms(self) -> list[Uniform]:
        return [
            Uniform(label, option.row_format, round(option.fixed.sum()), float(option.measured.sum()))
            for label, option in zip(self.labels, self.options, strict=True)
        ]

    def named(self, text: str) -> Uniform:
        """The format with this label, or with this short name behind the method's. Raises ConfigError."""
        for uniform in self.uniforms():
            if text in (uniform.label, _short(uniform.label, self.first["method"])):
                return uniform
        names = ", ".join(_short(label, self.first["method"]) for label in self.labels)
        raise ConfigError(f"--like {text}: the run has only {names}")


def formats_of(
    frame: pd.DataFrame, label: str | None = None, prompts: Sequence[str] | None = None
) -> Formats:
    """The formats of a method from `load`'s table, means over seeds and over `prompts` (None: the only one).

    `label`: any of the method's instances, None: the run has one method. Formats that differ by head or by
    layer already are left out. Raises ConfigError, ResultsError.
    """
    known = frame[~frame["params"].map(lambda params: is_choice(params.get("row_format", "")))]
    label = label or _only_method(known)
    rows = rows_of(known, label, prompts)
    labels = siblings(known, label)
    if len(labels) < 2:
        raise ConfigError(
            f"--formats: the run has {label} in one row format, and a choice needs two: replay it with"
            " `row_format: [int4, int8]`"
        )
    options = [fixed_cache(known, each, prompts, BYTES) for each in labels]
    _refuse_missing_heads(labels, options)
    return Formats(labels, options, rows.iloc[0], list(rows["prompt"].unique()))


def choose_formats(formats: Formats, limit: float | Uniform) -> FormatChoice:
    """The formats with the smallest sum of predicted losses whose bytes are at most `limit`, or those of a
    uniform format.

    The price of a byte decides first: the result is the best for the bytes that it takes. Single heads then
    use what is left, those that save most per byte first. The sum exceeds the smallest possible one by at
    most `predicted_kl - least`. Raises ConfigError if even the smallest formats take more.
    """
    like = limit if isinstance(limit, Uniform) else None
    total = like.bytes if like else limit
    heads = formats.options[0].heads
    groups = np.arange(len(heads))
    chosen, price = cheapest_formats(formats.options, groups, total)
    chosen = spend_rest(formats.options, chosen, total)
    fitting = [uniform for uniform in formats.uniforms() if uniform.bytes <= total]
    first = formats.first
    given = {name: value for name, value in first["given"].items() if name != "row_format"}
    return FormatChoice(
        first["method"], given, first["model"], first["trace_id"], formats.prompts, total, like,
        min(fitting, key=lambda uniform: uniform.predicted_kl, default=None),
        _table(formats, chosen), least_loss(formats.options, price, total),
    )  # fmt: skip


def choices(formats: Formats) -> Iterator[FormatChoice]:
    """A choice at the bytes of each format, the smallest first; formats of equal bytes share one, like the
    best of them."""
    best = {}
    for uniform in sorted(formats.uniforms(), key=lambda uniform: (uniform.bytes, uniform.predicted_kl)):
        best.setdefault(uniform.bytes, uniform)
    return (choose_formats(formats, uniform) for uniform in best.values())


def _only_method(frame):
    if frame.empty:
        raise ConfigError("--formats: the run's row formats all differ by head already: replay single ones")
    label = frame["label"].iloc[0]
    if others := [each for each in frame["label"].unique() if each not in siblings(frame, label)]:
        raise ConfigError(f"--formats: several methods: choose with --method, such as {label} or {others[0]}")
    return label


def _refuse_missing_heads(labels, options):
    widest = max((option.heads for option in options), key=len)
    for label, option in zip(labels, options, strict=True):
        if not option.heads.equals(widest):
            known = set(option.heads.itertuples(index=False, name=None))
            layer, head = next(at for at in widest.itertuples(index=False, name=None) if at not in known)
            raise ConfigError(f"--formats: {label} lacks layer {layer}, kv head {head}: replay it there")


def _short(label, method):
    return label.removeprefix(f"{method} ")


def _table(formats, chosen):
    heads = np.arange(len(chosen))
    losses, held = (np.array([getattr(option, name) for option in formats.options])
                    for name in ("measured", "fixed"))  # fmt: skip
    return formats.options[0].heads.assign(
        predicted_kl=losses[chosen, heads, 0],
        bytes=np.rint(held[chosen, heads]).astype(np.int64),
        label=[formats.labels[each] for each in chosen],
        row_format=[formats.options[each].row_format for each in chosen],
    )
