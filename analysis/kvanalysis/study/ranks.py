"""How well measures rank methods like each model's own loss, and which measure the other models would
choose."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from ..stats.ranks import drawn_spearmans, method_draws, percentile_intervals, spearmans

TIE = 0.01  # difference of Spearman within which the simpler measure is chosen
COLUMNS = ["model", "text", "place", "measure", "spearman", "n_methods"]


def rank_table(places):
    """DataFrame of COLUMNS: Spearman's correlation of each measure with the measured loss at each Place."""
    rows = [
        (place.model, place.text, place.name, name, _spearman(values, place.measured), len(place.methods))
        for place in places
        for name, values in place.values.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS).dropna(subset="spearman")


def _spearman(values, measured):
    if not np.isfinite(values).all():
        return np.nan
    return float(spearmans([values], [measured])[0, 0])


def summary(table, order):
    """A row for each measure, in `order`: the median and the minimum over all places, and each model's
    median."""
    by = table.groupby("measure")["spearman"]
    found = pd.DataFrame({"median": by.median(), "least": by.min()})
    models = table.pivot_table(index="measure", columns="model", values="spearman", aggfunc="median")
    return found.join(models).reindex([name for name in order if name in found.index])


def intervals(places, names):
    """{measure: (mean Spearman over places, low, high)}: 95 % over resampled methods, all places together."""
    labels = np.unique(np.concatenate([place.methods for place in places]))
    draws = method_draws(labels)
    found = {}
    for name in names:
        known = [place for place in places if np.isfinite(place.values[name]).all()]
        if not known or draws is None:
            continue
        each = [_drawn(place, name, draws, labels) for place in known]
        with np.errstate(invalid="ignore"):
            low, high = percentile_intervals(np.nanmean(each, axis=0)[None])
        mean = np.mean([_spearman(place.values[name], place.measured) for place in known])
        found[name] = (float(mean), float(low[0]), float(high[0]))
    return found


def _drawn(place, name, draws, labels):
    points = np.searchsorted(labels, place.methods)
    return drawn_spearmans([place.values[name]], [place.measured], draws.of(points))[0, 0]


@dataclass(frozen=True)
class HeldOut:
    """A model, the measure that the other models choose, its median Spearman on the model, and the median of
    the measure that is best there."""

    model: str
    chosen: str
    spearman: float
    best: str
    best_spearman: float


def leave_one_out(table, order):
    """[HeldOut]: the chosen measure has the largest median over the other models' medians; within TIE, the
    first of `order`."""
    medians = table.pivot_table(index="measure", columns="model", values="spearman", aggfunc="median")
    medians = medians.reindex([name for name in order if name in medians.index])
    found = []
    for model in medians.columns if medians.shape[1] > 1 else ():
        chosen = _first(medians.drop(columns=model).median(axis=1))
        best = medians[model].idxmax()
        found.append(HeldOut(model, chosen, medians.at[chosen, model], best, medians.at[best, model]))
    return found


def _first(values):
    return values.index[(values >= values.max() - TIE).to_numpy().argmax()]


def ceiling(places):
    """{model: median Spearman of the measured losses of two of its texts at one place}: how similarly even
    another text of the model ranks methods."""
    found = {}
    for model in dict.fromkeys(place.model for place in places):
        own = [place for place in places if place.model == model]
        pairs = [_agreement(a, b) for a, b in combinations(own, 2) if a.name == b.name and a.text != b.text]
        if pairs:
            found[model] = float(np.nanmedian(pairs))
    return found


def _agreement(one, other):
    both = pd.concat(
        [pd.Series(place.measured, index=place.methods) for place in (one, other)], axis=1, join="inner"
    ).to_numpy()
    return float(spearmans([both[:, 0]], [both[:, 1]])[0, 0]) if len(both) > 1 else np.nan


@dataclass(frozen=True)
class FirstChoice:
    """How good the method with the lowest measure is: at `right` of `places` it also has the lowest loss;
    `excess` {model: geometric mean of its measured loss over the lowest loss at the place}."""

    right: int
    places: int
    excess: dict[str, float]


def first_choice(places, name):
    """The FirstChoice of a measure; None if it has no values."""
    known = [place for place in places if np.isfinite(place.values[name]).all()]
    ratios = [place.measured[np.argmin(place.values[name])] / place.measured.min() for place in known]
    if not known:
        return None
    logs = pd.Series(np.log(ratios)).groupby([place.model for place in known]).mean()
    return FirstChoice(int(np.equal(ratios, 1).sum()), len(known), np.exp(logs).to_dict())


def rank_of(places, label, name=None):
    """{model: mean rank of a method, 1 the lowest} by the measured loss, or by a measure."""
    ranks = {}
    for place in places:
        values = place.measured if name is None else place.values[name]
        at = np.flatnonzero(place.methods == label)
        if len(at) and np.isfinite(values).all():
            ranks.setdefault(place.model, []).append(1 + (values < values[at[0]]).sum())
    return {model: float(np.mean(of)) for model, of in ranks.items()}
