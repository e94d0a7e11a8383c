"""Methods ranked at equal bytes, and which differences are significant."""

import json
from difflib import get_close_matches
from functools import reduce

import numpy as np
import pandas as pd

from ..data.labels import named_values
from ..errors import ConfigError, ResultsError
from ..loss.predicted import Losses
from ..stats.families import family_of
from ..stats.intervals import LEVEL, UNIT, used_rows
from . import words
from .contest import Contest, by_heads, by_nats
from .measures import NATS, column_of, metric_of, words_of
from .nats import nats_at, ranked_by_nats
from .ranked import RANKING, Ranked
from .reached import Question, Reached, Unreached, reached, smallest_and_largest
from .selection import of_layers
from .sizes import default_size, is_share_of, size_of


class Answer(Ranked):
    """Methods ranked at equal bytes (Ranked has the columns), and what to say of it."""

    @property
    def sentence(self) -> str:
        """The best method, or all that may be the best, and the evidence: text to quote."""
        return words.sentence(self)

    @property
    def caveats(self) -> list[str]:
        """Limits to know before quoting the sentence, one sentence each."""
        return words.caveats(self)

    def __str__(self) -> str:
        return words.text([self])


def compare_at(
    frame: pd.DataFrame,
    share: float,
    *,
    of: str | None = None,
    layers: str | list[int] | None = None,
    measure: str | None = None,
    phase: str | None = None,
    methods: list[str] | None = None,
    losses: Losses | None = None,
) -> Answer:
    """The Answer of `load`'s table at a share of the full cache's bytes, (0, 1].

    `of`: the bytes to count (None: `sizes.default_size`): "peak", "mean" over the steps, or "prompt", the
    prompt's bytes after its cut;
    `layers`: these layers, or all; `measure`: "nats" (the default if `losses` has every competing method),
    "distance" (otherwise the default, measures.DEFAULT), "error", "cosine", or a column in which less is
    better; `phase`: "stream" or "oneshot" alone; `methods`: names, or all; `losses`: losses predicted for the
    table, over all of its layers. Oracles and the plain exact cache do not compete. A method that lacks a
    head which another method has is left out. Raises ConfigError or ResultsError if there is nothing to
    compare.

    Example: `print(compare_at(load("out/x"), 0.2, of="prompt"))`.
    """
    of = of or default_size(frame)
    layers = None if layers == "all" else layers
    _check_methods(frame, methods)
    rows = _rivals(of_layers(frame, layers), phase, methods)
    column = column_of(frame, None if measure == NATS else measure)
    marked = is_share_of(frame.attrs.get("meta", {}), of)
    asked = Question(share, column, size_of(rows, of), marked, metric_of(frame, column).better)
    found = {label: reached(own, asked) for label, own in rows.groupby("label", sort=True)}
    floors = _unreachable_methods(frame, rows, asked, phase, methods)
    found |= {label: floor for label, floor in floors.items() if not isinstance(found.get(label), Reached)}
    found = _keep_complete(found)
    numbers = {label: each.values for label, each in found.items() if isinstance(each, Reached)}
    values, equals = _distinct(numbers)
    predicted = nats_at(losses if layers is None else None, rows, asked)
    nats_first = ranked_by_nats(measure, predicted, list(values), losses)
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
        measure_words=words_of(frame, NATS if nats_first else column),
        ranking=ranking,
        n_units=len(units),
        n_blocks=len(units.droplevel("kv_head").unique()),
        n_texts=len(units.droplevel(["layer", "kv_head"]).unique()),
        layers=tuple(sorted({int(layer) for layer in rows["layer"]})),
        model=str(rows["model"].iloc[0]),
    )


NAMED = ("phase", "row_format", "gqa.level", "allocator")  # parameters that a quoted method must name


def _names(rows: pd.DataFrame) -> dict[str, str]:
    """{label: its name}."""
    names = {}
    for own in rows.drop_duplicates("label").itertuples():
        quoted = named_values(own.given, [name for name in NAMED if name in own.given])
        missing = [text for text in quoted if f" {text} " not in f"{own.label} "]
        names[own.label] = " ".join([own.label, *missing])
    return names


def _unreachable_methods(frame, rows, asked, phase, methods) -> dict[str, Reached | Unreached]:
    """Methods that were requested at the share and have no cell there: the floor that the run found. A method
    without any row has no label; its name lists all parameters that it was configured with."""
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
            floors[label] = Unreached(_obstacle(each, asked))
    return floors


def _obstacle(unreachable: dict, asked: Question) -> str:
    """Why a method has no cell at the share."""
    if not unreachable["floor_low"]:
        return f"failed at every budget: {unreachable.get('failure') or 'none suits its parameters'}"
    return f"needs {100 * unreachable['floor_low']:.1f} % of {asked.size.short}"


def _canonical(given: dict) -> str:
    """One text for equal values."""
    return json.dumps(given, sort_keys=True, separators=(",", ":"))


def _keep_complete(found: dict[str, Reached | Unreached]) -> dict[str, Reached | Unreached]:
    """Leaves out methods without a number on some head that another has: their means are not comparable."""
    units = [each.values.index for each in found.values() if isinstance(each, Reached)]
    every = reduce(pd.Index.union, units) if units else []
    return {
        label: Unreached(f"{len(each.values)} of {len(every)} heads have a number at this size")
        if isinstance(each, Reached) and len(each.values) < len(every)
        else each
        for label, each in found.items()
    }


def shares_of_all(frame: pd.DataFrame, of: str) -> list[float]:
    """The smallest and the largest share of the bytes `of`, in whole per cent, at which every method that
    competes has a number in every text; one of them if there is no room between, [] if there are no
    numbers."""
    rows = _rivals(frame, None, None)
    asked = Question(1.0, column_of(frame, None), size_of(rows, of))
    ends = [each for _, own in rows.groupby("label") for each in smallest_and_largest(own, asked)]
    if not ends:
        return []
    smallest, largest = (np.array(each) for each in zip(*ends, strict=True))
    first = min(100, int(np.ceil(100 * smallest.max() - ROUNDING)))
    last = min(100, max(first, int(np.floor(100 * largest.min() + ROUNDING))))
    return [percent / 100 for percent in dict.fromkeys((first, last))]


def _check_methods(frame: pd.DataFrame, methods: list[str] | None) -> None:
    """Raises ConfigError for a method that was not replayed."""
    asked = {one["method"] for one in frame.attrs.get("meta", {}).get("unreachable", [])}
    known = [*dict.fromkeys(frame["method"]), *sorted(asked - {*frame["method"]})]
    for name in methods or ():
        if name in known:
            continue
        close = get_close_matches(name.lower(), known, 1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(f"--methods {name}: was not replayed{meant}; the results have {', '.join(known)}")


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
        raise ConfigError(
            f"results of several models cannot be ranked together: {names}; compare them one by one"
        )
    used = used.assign(family=used["label"].map(family_of(used)))
    return used if phase is None else used[used["family"] == phase]


ROUNDING = 1e-6  # per cent
SAME = 1e-6  # relative tolerance: float32 sums in another order


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
    for label in contest.ranked:
        error, low, high = contest.losses[label]
        row = {"label": label, "family": family[label], "error": error, "low": low, "high": high}
        row |= {"share": found[label].share, "how": found[label].how, "equals": ", ".join(equals[label])}
        row |= {"layers_more": contest.layers_more.get(label, np.nan)}
        yield row | _against_best(contest, label)
    for label, each in found.items():
        if isinstance(each, Unreached):
            row = {"label": label, "family": family.get(label, ""), "how": each.why}
            yield row | {"decided": False, "equals": ""}


def _against_best(contest: Contest, label: str) -> dict[str, object]:
    """The label beside the first: difference, ratio with its interval, and whether it can be the best."""
    pair = contest.pair(label, contest.ranked[0])
    if pair is None:
        return {"decided": False}
    p = min(1.0, (len(contest.ranked) - 1) * pair.p_worse) if np.isfinite(pair.p) else np.nan
    ratios = {"ratio": pair.ratio, "ratio_low": pair.low, "ratio_high": pair.high}
    return {"difference": pair.difference, **ratios, "p": p, "decided": bool(p < 1 - LEVEL)}
