"""Methods ranked at equal bytes, and which differences are significant."""

import json
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pandas as pd

from ..data.labels import named_values
from ..errors import ResultsError, UserError
from ..loss.predicted import Losses
from ..stats.families import family_of
from ..stats.intervals import LEVEL, UNIT, holm, used_rows
from . import words
from .contest import Contest, by_heads, by_nats
from .measures import NATS, column_of
from .nats import nats_at, nats_lead
from .reached import Question, Reached, Unreached, reached
from .selection import of_layers
from .sizes import PEAK, Size, shares_are_of, size_of

RANKING = [
    *("label", "name", "family", "error", "low", "high", "share"),
    *("difference", "difference_low", "difference_high", "p", "decided", "layers_more", "how", "equals"),
    *("nats", "nats_low", "nats_high", "distance"),
]


@dataclass(frozen=True)
class Answer:
    """Who loses least at `share` of the full cache's bytes, which `size` counts.

    `measure`: what methods are ranked by, "nats" or a column. `ranking`, a row a method, the least loss
    first, then those that cannot be compared: `label`, `name` (the label with what changes bytes or
    phase, even if all were given it), `family` (stats.families), `error`, the measure with its 95 %
    interval `low`, `high`, the `share` that it really takes, `difference` to the first with its interval
    (positive: it loses more), `p` after Holm's correction over all pairs, `decided` (significantly more
    than the first), `layers_more`: in how many layers of texts it loses more (NaN by nats), `how` the
    number was found or why there is none, `equals`: labels with the same numbers on every head, which
    count as one contender, `nats`: what it is predicted to cost the model a token, with a 95 % interval,
    where the results say so, and `distance`: what was measured on the heads, which by nats is the column
    of second rank, else `error` again.
    """

    share: float
    size: Size
    measure: str
    ranking: pd.DataFrame
    n_pairs: int
    n_units: int
    n_blocks: int
    n_texts: int
    layers: tuple[int, ...]
    model: str

    @property
    def compared(self) -> pd.DataFrame:
        """The rows of the ranking that have a number."""
        return self.ranking[self.ranking["error"].notna()]

    @property
    def best(self) -> str | None:
        """The label with the least loss, whether or not the lead is sure; None where none can be compared.
        Its `name` in the ranking is what may be quoted."""
        return None if self.compared.empty else str(self.compared["label"].iloc[0])

    @property
    def winner_decided(self) -> bool:
        """Whether the first is told apart from every other."""
        return len(self.compared) > 1 and bool(self.compared["decided"].iloc[1:].all())

    @property
    def sentence(self) -> str:
        """Who loses least, by how much, and whether that is sure: one sentence to quote."""
        return words.sentence(self)

    @property
    def caveats(self) -> list[str]:
        """What a reader must know before quoting it, a sentence each."""
        return words.caveats(self)

    def __str__(self) -> str:
        return words.text(self)


def compare_at(
    frame: pd.DataFrame,
    share: float,
    *,
    of: str = PEAK,
    layers: list[int] | None = None,
    measure: str | None = None,
    phase: str | None = None,
    methods: list[str] | None = None,
    losses: Losses | None = None,
) -> Answer:
    """The Answer of `load`'s table at a share of the full cache's bytes, (0, 1].

    `of`: which bytes, "peak", "mean" over the steps, or "prompt", those of the prompt after its cut;
    `layers`: all, or those named; `measure`: "nats" (the default where `losses` holds all that compete),
    "distance" (else the default, measures.DEFAULT), "error", "cosine", or a column in which less is better;
    `phase`: "stream" or "oneshot" alone; `methods`: names, or all; `losses`: those of the table, predicted
    for all of its layers. Oracles and the plain exact cache do not compete, and who lacks a head that another
    has is left out. Raises UserError or ResultsError where there is nothing to
    compare.
    """
    rows = _rivals(of_layers(frame, layers), phase, methods)
    column = column_of(frame, None if measure == NATS else measure)
    asked = Question(share, column, size_of(rows, of), shares_are_of(frame.attrs.get("meta", {}), of))
    found = {label: reached(own, asked) for label, own in rows.groupby("label", sort=True)}
    floors = _out_of_reach(frame, rows, asked, phase, methods)
    found |= {label: floor for label, floor in floors.items() if not isinstance(found.get(label), Reached)}
    found = _on_all_heads(found)
    numbers = {label: each.values for label, each in found.items() if isinstance(each, Reached)}
    values, equals = _distinct(numbers)
    predicted = nats_at(losses if layers is None else None, rows, asked)
    nats_first = nats_lead(measure, predicted, list(values), losses)
    contest = by_nats(predicted, list(values)) if nats_first else by_heads(values)
    found |= {label: Unreached("no loss is predicted") for label in values if label not in contest.losses}
    family = rows.groupby("label")["family"].first()
    ranking = pd.DataFrame(_rows(found, contest, equals, family), columns=RANKING)
    for name in predicted:
        ranking[name] = ranking["label"].map(predicted[name])
    ranking["distance"] = ranking["label"].map({label: own.mean() for label, own in values.items()})
    ranking["name"] = ranking["label"].map(_names(rows)).fillna(ranking["label"])
    units = next(iter(values.values())).index if values else pd.MultiIndex.from_tuples([], names=UNIT)
    return Answer(
        share=share,
        size=asked.size,
        measure=NATS if nats_first else column,
        ranking=ranking,
        n_pairs=len(contest.pairs),
        n_units=len(units),
        n_blocks=len(units.droplevel("kv_head").unique()),
        n_texts=len(units.droplevel(["layer", "kv_head"]).unique()),
        layers=tuple(sorted({int(layer) for layer in rows["layer"]})),
        model=str(rows["model"].iloc[0]),
    )


NAMED = ("phase", "row_format", "gqa.level", "allocator")  # what a quoted method must not go without


def _names(rows: pd.DataFrame) -> dict[str, str]:
    """{label: its name}."""
    names = {}
    for own in rows.drop_duplicates("label").itertuples():
        quoted = named_values(own.given, [name for name in NAMED if name in own.given])
        missing = [text for text in quoted if f" {text} " not in f"{own.label} "]
        names[own.label] = " ".join([own.label, *missing])
    return names


def _out_of_reach(frame, rows, asked, phase, methods) -> dict[str, Reached | Unreached]:
    """Methods that were asked for the share and have no cell of it: the floor that the run found. One without
    any row has no label of its own: it is named by all that it was given."""
    labels = {
        (own.method, _canonical(own.given)): own.label for own in rows.drop_duplicates("label").itertuples()
    }
    floors = {}
    for each in frame.attrs.get("meta", {}).get("unreachable", []) if asked.marked else []:
        if not np.isclose(each["share"], asked.share) or each["heads"] < each["of_heads"]:
            continue
        if methods is not None and each["method"] not in methods:
            continue
        label = labels.get((each["method"], _canonical(each["given"])))
        if label is None and phase is None:
            label = " ".join([each["method"], *named_values(each["given"], each["given"])])
        if label is not None:
            floors[label] = Unreached(f"needs {each['floor_low']:.1%} of {asked.size.short}")
    return floors


def _canonical(given: dict) -> str:
    """One text for equal values."""
    return json.dumps(given, sort_keys=True, separators=(",", ":"))


def _on_all_heads(found: dict[str, Reached | Unreached]) -> dict[str, Reached | Unreached]:
    """Who has no number on some head that another has is left out: means of other heads are no comparison."""
    units = [each.values.index for each in found.values() if isinstance(each, Reached)]
    every = reduce(pd.Index.union, units) if units else []
    return {
        label: Unreached(f"{len(each.values)} of {len(every)} heads have a number at this size")
        if isinstance(each, Reached) and len(each.values) < len(every)
        else each
        for label, each in found.items()
    }


def _rivals(frame: pd.DataFrame, phase: str | None, methods: list[str] | None) -> pd.DataFrame:
    """Finished rows of the methods that compete, with their `family`."""
    used = used_rows(frame)
    plain = (used["method"] == "exact") & ~used["given"].map(lambda given: "row_format" in given)
    used = used[~used["oracle"] & ~plain]
    if methods is not None:
        used = used[used["method"].isin(methods)]
    if used.empty:
        raise ResultsError("no finished cell of a method that compresses: there is nothing to compare")
    if used["model"].nunique() > 1:
        names = ", ".join(sorted(used["model"].unique()))
        raise UserError(f"results of several models cannot be ranked together: {names}; compare each alone")
    used = used.assign(family=used["label"].map(family_of(used)))
    return used if phase is None else used[used["family"] == phase]


SAME = 1e-6  # relative: sums of float32 in another order


def _distinct(values: dict[str, pd.Series]) -> tuple[dict[str, pd.Series], dict[str, list[str]]]:
    """(values of one label of each group with equal numbers on all heads, {label: the others})."""
    equals: dict[str, list[str]] = {}
    for label in sorted(values, key=lambda name: (len(name), name)):
        same = (other for other in equals if _equal(values[label], values[other]))
        equals.setdefault(next(same, label), []).append(label)
    return {label: values[label] for label in equals}, {
        label: [other for other in labels if other != label] for label, labels in equals.items()
    }


def _equal(first: pd.Series, second: pd.Series) -> bool:
    both = pd.concat([first, second], axis=1)
    return len(both) > 0 and bool(np.allclose(*both.to_numpy().T, rtol=SAME, atol=0))


def _rows(found, contest: Contest, equals, family):
    adjusted = dict(zip(contest.pairs, holm([pair.p for pair in contest.pairs.values()]), strict=True))
    for label in contest.ranked:
        error, low, high = contest.losses[label]
        row = {"label": label, "family": family[label], "error": error, "low": low, "high": high}
        row |= {"share": found[label].share, "how": found[label].how, "equals": ", ".join(equals[label])}
        row |= {"layers_more": contest.layers_more.get(label, np.nan)}
        yield row | _against(contest.ranked[0], label, contest.pairs, adjusted)
    for label, each in found.items():
        if isinstance(each, Unreached):
            row = {"label": label, "family": family.get(label, ""), "how": each.why}
            yield row | {"decided": False, "equals": ""}


def _against(best: str, label: str, pairs, adjusted) -> dict[str, object]:
    """Label minus best."""
    forward = (label, best) in pairs
    key = (label, best) if forward else (best, label)
    if key not in pairs:
        return {"decided": False}
    pair, sign = pairs[key], 1 if forward else -1
    ends = sorted((sign * pair.low, sign * pair.high)) if np.isfinite(pair.low) else (np.nan, np.nan)
    p = adjusted[key]
    return {"difference": sign * pair.difference, "difference_low": ends[0], "difference_high": ends[1],
            "p": p, "decided": bool(p < 1 - LEVEL and sign * pair.difference > 0)}  # fmt: skip
