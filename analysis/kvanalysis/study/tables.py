"""The tables of a study: ranks.csv, predictions.csv and study.md beside the models' folders."""

import numpy as np
import pandas as pd
from kvbase.files import write_atomic

from ..data.confirmed import confirmed
from ..data.load import load
from ..data.shares import with_common_budgets
from ..errors import StudyError
from ..loss.agreement import agreement
from ..loss.predicted import losses_of
from ..predict.instances import POINT, instances_of
from ..predict.measures import MAIN, THIRDS, weighted
from ..predict.words import two
from ..stats.format import markdown
from ..stats.intervals import used_rows
from .places import places_of
from .ranks import ceiling, first_choice, intervals, leave_one_out, rank_of, rank_table, summary

# (measure, weighting), the simplest first; among equally good measures the first is chosen.
CANDIDATES = (
    (MAIN, "mean"),
    ("missing_mass", "mean"),
    ("cosine_distance", "mean"),
    ("cosine_distance_sq", "mean"),
    ("rel_err_fro", "root mean square"),
    ("rel_err_out_p95", "mean"),
    ("cosine_distance", THIRDS[2]),
    ("cosine_distance", "largest"),
    ("kl_head_mean", "mean"),
)
WATCHED = "tova"  # keeps the tokens with the most attention: the method that errors of outputs favour most


def write_tables(folders, out):
    """Writes the tables of {model: folder of results}; returns their paths. Raises StudyError."""
    models = {name: _instances(name, folder) for name, folder in folders.items()}
    places = [place for name, found in models.items() for place in _places(name, found)]
    if not places:
        raise StudyError(f"{out}: no model has enough confirmed methods at one budget")
    order = list(places[0].values)
    ranks = rank_table(places)
    predictions = pd.concat([_predictions(name, found) for name, found in models.items()], ignore_index=True)
    parts = [*_ranking_text(places, ranks, order), *_prediction_text(predictions)]
    return [
        write_atomic(out / "ranks.csv", ranks.to_csv(index=False)),
        write_atomic(out / "predictions.csv", predictions.to_csv(index=False)),
        write_atomic(out / "study.md", "\n\n".join(parts) + "\n"),
    ]


def _instances(name, folder):
    frame = with_common_budgets(load(folder))
    confirmation = confirmed(frame)
    losses = losses_of(frame)
    found = instances_of(frame, confirmation, losses) if confirmation else None
    if found is None:
        raise StudyError(f"{name}: {folder} has no confirmed instance")
    rows = used_rows(frame)
    sums = rows.groupby(POINT, dropna=False)[["total_bytes", "full_bytes"]].sum()
    share = (sums["total_bytes"] / sums["full_bytes"]).rename("share").reset_index()
    coded = rows.groupby("label")["given"].first().map(lambda given: "row_format" in given)
    table = found.table.merge(share, on=POINT, how="left")
    table["coded"] = table["label"].map(coded).fillna(True).astype(bool)
    return found, table, losses


def _places(model, instances):
    found, table, _ = instances
    used = (~table["oracle"] & ~table["coded"]).to_numpy(dtype=bool)
    measures = {
        f"{name}, {weighting}": weighted(found.measures[name], weighting)[used]
        for name, weighting in CANDIDATES
        if name in found.measures
    }
    measures |= {name: values[used] for name, values in found.together.items()}
    return places_of(model, table[used].reset_index(drop=True), measures)


def _predictions(model, instances):
    """A row for each text and method, and for all methods of a text: factor, scatter, share inside."""
    _, _, losses = instances
    if losses is None or "kl_mean" not in losses.table or losses.why:
        return pd.DataFrame()
    table = losses.table.dropna(subset=["kl", "kl_mean"])
    table = table[(table["kl"] > 0) & (table["kl_mean"] > 0)]
    rows = []
    for text, own in table.groupby("prompt"):
        for method, part in [("all", own), *own.groupby("method")]:
            logs = np.log(part["kl_mean"] / part["kl"])
            inside = part["kl_mean"].between(part["kl_low"], part["kl_high"]).mean()
            scatter = float(np.exp(logs.std(ddof=1))) if len(logs) > 1 else np.nan
            rank = agreement(part["kl"], part["kl_mean"])
            rows.append((model, text, method, len(part), float(np.exp(logs.median())), scatter, float(inside),
                         rank.spearman if rank else np.nan))  # fmt: skip
    columns = ["model", "text", "method", "instances", "factor", "scatter", "inside", "spearman"]
    return pd.DataFrame(rows, columns=columns)


def _ranking_text(places, ranks, order):
    models = list(dict.fromkeys(place.model for place in places))
    within = intervals(places, order)
    header = ["measure", "median", "least", "mean [95 %]", *models]
    rows = [
        [name, two(row["median"]), two(row["least"]), _with_interval(within.get(name)),
         *(two(row.get(model, np.nan)) for model in models)]
        for name, row in summary(ranks, order).iterrows()
    ]  # fmt: skip
    tops = ceiling(places)
    rows.append(
        ["measured on another text of the model", "", "", "", *(two(tops.get(m, np.nan)) for m in models)]
    )
    held = [[each.model, each.chosen, two(each.spearman), each.best, two(each.best_spearman)]
            for each in leave_one_out(ranks, order)]  # fmt: skip
    watched = [[name or "the model itself", *(f"{found.get(model, np.nan):.1f}" for model in models)]
               for name in (None, *order) if (found := rank_of(places, WATCHED, name))]  # fmt: skip
    chosen = {name: found for name in order if (found := first_choice(places, name))}
    firsts = [[name, f"{found.right} of {found.places}", *(two(found.excess.get(m, np.nan)) for m in models)]
              for name, found in chosen.items()]  # fmt: skip
    return [
        "Spearman with the measured KL divergence, over methods at one budget or one share of the bytes;"
        " medians.",
        markdown(header, rows),
        "The measure chosen on the other models, tested on the held-out model.",
        markdown(["held-out model", "chosen", "Spearman", "best there", "Spearman"], held),
        "The best method by each measure: how often it is also the model's, and its measured loss over the"
        " lowest.",
        markdown(["by", "right", *models], firsts),
        f"Mean rank of {WATCHED}, 1 the lowest loss.",
        markdown(["by", *models], watched),
    ]


def _with_interval(found):
    return "{:.2f} [{:.2f}, {:.2f}]".format(*found) if found else ""


def _prediction_text(table):
    if table.empty:
        return ["No loss was predicted."]
    rows = []
    for (model, text), own in table.groupby(["model", "text"], sort=False):
        whole, parts = own[own["method"] == "all"].iloc[0], own[own["method"] != "all"]
        worst = parts.loc[np.log(parts["factor"]).abs().idxmax()]
        numbers = (whole["instances"], two(whole["factor"]), f"×{two(whole['scatter'])}")
        ranks = (f"{whole['inside']:.0%}", two(whole["spearman"]))
        rows.append([f"{model}, {text}", *numbers, *ranks, f"{worst['method']} {two(worst['factor'])}"])
    header = ["model, text", "instances", "factor", "scatter", "inside", "Spearman", "method farthest off"]
    return ["Measured over predicted loss, and the share of instances inside the 95 % interval.",
            markdown(header, rows), "The share inside, by method.", _by_method(table)]  # fmt: skip


def _by_method(table):
    models = list(dict.fromkeys(table["model"]))
    own = table[table["method"] != "all"]
    own = own.assign(counted=own["inside"] * own["instances"])
    sums = own.groupby(["method", "model"])[["counted", "instances"]].sum()
    shares = (sums["counted"] / sums["instances"]).unstack("model")
    factors = own.groupby(["method", "model"])["factor"].median().unstack("model")
    rows = [
        [method, *(f"{shares.at[method, m]:.0%} ({two(factors.at[method, m])})" for m in models)]
        for method in shares.index
    ]
    return markdown(["method", *(f"{model}: inside (factor)" for model in models)], rows)
