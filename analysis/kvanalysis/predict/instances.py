"""Instances that the model itself ran: the loss of each, with every measure of every layer."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..data.arrays import holds_first_token
from ..data.confirm_csv import RECORDED, draw_variance, drawn_once, layers_of
from ..data.confirmed import INSTANCE, confirmed, whole_rows
from ..stats.families import families
from ..stats.intervals import used_rows
from .measures import COMPRESSED, MEASURES, MODEL, PREDICTED, RUN

SAMPLED = "sampled"  # methods with weights or a seed: samples and walks
TEXT, RANGE = ["trace_id", "prompt"], ["distance_from", "distance_to"]
POINT = [*TEXT, "label", "budget_tokens"]  # an instance, seeds averaged
LOSS = "loss_increase"
TARGETS = {LOSS: "loss increase [nats/token]", "kl_mean": "KL [nats/token]", "top1_lost": "1 − top-1"}
SAME = 6  # digits to which loss and KL agree for two methods that kept the same tokens


@dataclass(frozen=True)
class Instances:
    """`table`: a row per POINT with method, family, oracle, n_seeds, n_rows, loss_full, loss, the TARGETS,
    `draw_error`, the standard error of the loss increase over draws (0 for a single draw), and `once`,
    whether quantised rows were drawn once; all over all rows. `parts`: {(from, to): TARGETS over these rows,
    in the table's order}; `measures`: {name: [instances, layers]}, NaN without a value; `together`: {name:
    [instances]}, likewise, for measures that are one number for all layers; `layers`: the compressed layers;
    `selection`; `elsewhere`: number of instances with other selections or layers; `same`: [(label, budget,
    the label that represents it because their losses are equal)]; `deviation`: largest difference between the
    main measure of the engine and that of the model's pass."""

    table: pd.DataFrame
    parts: dict
    measures: dict
    together: dict
    layers: list
    selection: str
    elsewhere: int
    same: list
    deviation: float

    def only(self, mask):
        """The instances marked by `mask`."""
        mask = np.asarray(mask, dtype=bool)
        kept = {name: values[mask] for name, values in self.measures.items()}
        together = {name: values[mask] for name, values in self.together.items()}
        parts = {rows: losses[mask].reset_index(drop=True) for rows, losses in self.parts.items()}
        return replace(
            self, table=self.table[mask].reset_index(drop=True), parts=parts, measures=kept, together=together
        )

    def texts(self):
        """[(trace_id, prompt)] in order."""
        return sorted(self.table[TEXT].drop_duplicates().itertuples(index=False, name=None))


def settings(losses):
    """[(selection, layers, finished instances)], the main one first: recorded selections come first, because
    the offline numbers belong to them; then the most layers, then the most instances."""
    whole = whole_rows(losses)
    counts = whole.groupby(["selection", "layers"]).size()
    order = sorted(
        counts.items(), key=lambda item: (item[0][0] != RECORDED, -len(layers_of(item[0][1])), -item[1])
    )
    return [(*key, int(count)) for key, count in order]


def instances_of(frame, confirmation, predicted=None):
    """The Instances from `load`'s table, its `Confirmed` and, if known, its `loss.predicted.Losses`; None if
    no instance is finished."""
    found = settings(confirmation.losses)
    if not found:
        return None
    selection, layers, _ = found[0]
    losses = confirmation.losses[
        (confirmation.losses["status"] == "ok") & (confirmation.losses["selection"] == selection)
    ]
    losses = losses[losses["layers"] == layers].assign(top1_lost=lambda rows: 1 - rows["top1_agreement"])
    table, parts = _losses(losses, list(frame["label"].unique()))
    families_of = _families(frame)
    table["family"] = [families_of.get(label, "") for label in table["label"]]
    held = layers_of(layers)
    measures = _measures(frame, confirmation, losses, table, held)
    elsewhere = len(whole_rows(confirmation.losses)) - losses["key"].nunique()
    deviation = _deviation(frame, confirmation, losses)
    together = _together(predicted, table, held)
    return _once(Instances(table, parts, measures, together, held, selection, elsewhere, [], deviation))


def _together(predicted, table, layers):
    """{measure: [instances]}: predictions for whole instances of the compressed layers."""
    if predicted is None or predicted.why:
        return {}
    own = predicted.table[predicted.table["layers"] == len(layers)]
    means = own.groupby(POINT, dropna=False)[PREDICTED.column].mean().reset_index()
    found = table[POINT].merge(means, on=POINT, how="left")[PREDICTED.column].to_numpy(dtype=float)
    return {PREDICTED.name: found} if np.isfinite(found).any() else {}


def trace_instances(rows, predicted=None):
    """The Instances for the rows of one trace in `load`'s table and, if known, its Losses; None if the closed
    loop has finished none."""
    confirmation = confirmed(rows, whole=False)
    return instances_of(rows, confirmation, predicted) if confirmation else None


def _losses(losses, labels):
    """(table over all rows, {range: losses}) with seeds averaged, `labels` in the run's order."""
    losses = losses.assign(draw_variance=draw_variance(losses), once=drawn_once(losses))
    by_range = losses.groupby([*POINT, *RANGE], dropna=False)
    means = by_range[["loss_full", "loss", *TARGETS, "draw_variance"]].mean()
    means[["n_seeds", "n_rows"]] = by_range.agg(n_seeds=("seed", "size"), n_rows=("n_rows", "first"))
    means[["method", "oracle"]] = by_range[["method", "oracle"]].first()
    means["once"] = by_range["once"].any()
    means["draw_error"] = np.sqrt(means.pop("draw_variance") / means["n_seeds"])
    means = means.reset_index()
    means = means.assign(place=means["label"].map(labels.index))
    means = means.sort_values([*TEXT, "place", "budget_tokens", *RANGE], ignore_index=True).drop(
        columns="place"
    )
    width = means["distance_to"] - means["distance_from"]
    whole = width == width.groupby([means[name] for name in POINT], dropna=False).transform("max")
    table = means[whole].drop(columns=RANGE).reset_index(drop=True)
    parts = {
        tuple(map(int, rows)): table[POINT].merge(own, on=POINT, how="left")[list(TARGETS)]
        for rows, own in means[~whole].groupby(RANGE)
    }
    return table, parts


def _families(frame):
    """{label: its family}; SAMPLED if a cell has weights or a seed, else the family of stats.families."""
    used = used_rows(frame)
    found = families(used).groupby("label")["family"].first().to_dict()
    random = used["seed"].notna()
    if "weight_floats" in used:
        random |= used["weight_floats"] > 0
    return found | dict.fromkeys(used.loc[random, "label"].unique(), SAMPLED)


def _measures(frame, confirmation, losses, table, layers):
    """{measure: [instances, layers]}: means over the heads of a layer and the confirmed seeds."""
    cells = used_rows(frame).merge(losses[INSTANCE].drop_duplicates(), on=INSTANCE)
    rows = confirmation.layers[confirmation.layers["key"].isin(losses["key"])]
    sources = {RUN: _by_layer(cells), MODEL: _by_layer(rows)}
    found = {}
    for measure in MEASURES:
        means = sources[MODEL if measure.needs in (MODEL, COMPRESSED) else RUN]
        if measure.column in means:
            wide = means[measure.column].unstack("layer").reindex(columns=layers)
            ordered = table[POINT].merge(wide.reset_index(), on=POINT, how="left")[layers]
            found[measure.name] = measure.of(ordered.to_numpy(dtype=float))
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _by_layer(rows):
    """Means by POINT and layer; NaN if one is missing, because a mean over fewer heads would be another
    measure."""
    columns = [measure.column for measure in MEASURES if measure.column in rows.select_dtypes("float")]
    if not columns:
        return pd.DataFrame()
    groups = rows.groupby([*POINT, "layer"], dropna=False)[columns]
    return groups.mean().where(groups.count().eq(groups.size(), axis=0))


def _deviation(frame, confirmation, losses):
    """The largest difference between the error that the engine measured and that of the model's own pass."""
    if "rel_err_out_mean" not in confirmation.layers:
        return np.nan
    keys = [*INSTANCE, "layer"]
    cells = (
        used_rows(frame).groupby(keys, dropna=False)["rel_err_out_mean"].mean().rename("engine").reset_index()
    )
    rows = confirmation.layers[confirmation.layers["key"].isin(losses["key"])].merge(cells, on=keys)
    return float((rows["engine"] - rows["rel_err_out_mean"]).abs().max())


def _once(found):
    """Drops duplicates: a method that by its rule did the same as another (PyramidKV with equal layers is
    SnapKV) adds no evidence. Among instances with one budget and equal losses, the first in the run's order
    is kept."""
    table = found.table
    losses = [table[name].round(SAME) for name in ("loss", "kl_mean")]
    alike = table.groupby(
        [*(table[name] for name in (*TEXT, "budget_tokens")), *losses], dropna=False, sort=False
    )
    first = alike["label"].transform("first")
    again = (first != table["label"]).to_numpy()
    same = sorted({*zip(table["label"][again], table["budget_tokens"][again], first[again], strict=True)})
    return replace(found.only(~again), same=same)


MOST_HEADS = (
    0.5  # share of heads at the smallest budget: a blind sample holds the token as often as any other token
)


def sink_holders(frame):
    """{label: whether it keeps its prompts' first token in more than MOST_HEADS of its heads at its smallest
    budget}; None if the run saved no kept sets (`output.save: [kept]`). For the loss it does not matter
    whether a rule protects the sink or a score finds it."""
    folders = frame.attrs.get("folders", ())
    rows = frame[frame["status"] == "ok"]
    smallest = rows.groupby("label")["budget_tokens"].transform("min")
    rows = rows[(rows["budget_tokens"] == smallest).fillna(True).astype(bool)]
    held = holds_first_token(Path(folders[0]) / "kept.h5", rows["key"]) if len(folders) else None
    if held is None:
        return None
    shares = rows.assign(held=held).groupby("label")["held"].mean().dropna()
    return (shares > MOST_HEADS).to_dict()
