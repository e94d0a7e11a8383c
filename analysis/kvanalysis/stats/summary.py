"""The one table behind the figures and the page: a row per (trace, method label, budget)."""

import json

import numpy as np
import pandas as pd

from ..data.notes import notes_of
from .intervals import UNIT, paired_difference, size_interval, unit_means, used_rows

# Measures with an interval, and the prefix of its ends' columns.
INTERVALS = {"rel_err_out_mean": "rel_err", "cosine_distance_sq": "distance"}
# Tables of older versions lack these.
LATER = ("cosine_distance_sq", "prompt_bytes", "prompt_full_bytes")
MEASURES = (
    *dict.fromkeys((*INTERVALS, *LATER)),
    "eps_spectral_mean",
    "partition_err_mean",
    "kept_mass_mean",
    "peak_kept_tokens",
    "total_bytes",
    "full_bytes",
    "n_evictions",
)
RATIOS = (("bytes_ratio", "total_bytes", "full_bytes"), ("prompt_ratio", "prompt_bytes", "prompt_full_bytes"))


def summarise(frame, by=()):
    """Means over units with the intervals of two measures, from `load`'s table.

    One row per (trace_id, *by, label, budget_tokens). Columns: the means of MEASURES, `rel_err_low`,
    `rel_err_high`, `distance_low` and `distance_high` (95 % over layers, NaN if too few), `bytes_ratio`
    (total over full bytes), `prompt_ratio` (the same of the prompt after its cut), `n_cells` (rows in
    results.csv), `n_rows` (rows used), `n_units`, `n_seeds` (the maximum over units), `oracle`, `full_cache`
    (every token stays resident: a read budget) and `notes`. A group without a usable row is kept, with NaN.
    """
    keys = ["trace_id", *by, "label", "budget_tokens"]
    frame = frame.assign(**{name: np.nan for name in LATER if name not in frame})
    groups = frame.groupby(keys, dropna=False, sort=True)
    # One number per group: budgets may be missing, and pandas joins and looks up missing keys badly.
    number = groups.ngroup()
    table = groups.agg(
        n_cells=("status", "size"), method=("method", "first"), oracle=("oracle", "any")
    ).reset_index()
    units = _units(used_rows(frame), number)
    table = table.join(_over_units(units), how="left")
    counts = ["n_rows", "n_units", "n_seeds"]
    table[counts] = table[counts].fillna(0).astype(int)
    table["full_cache"] = table["full_cache"].eq(True)
    for ratio, held, full in RATIOS:
        table[ratio] = table[held] / table[full].where(table[full] > 0)
    briefs = _briefs(frame, groups, table)
    table["notes"] = _notes(table, briefs, units["rel_err_out_mean"], keys[:-1])
    return table


def _units(used, number):
    """Seed means, indexed by (group number, *UNIT), with `seeds`, `n_prefill` and `full_cache` per unit."""
    held = (used["budget_tokens"] < used["n_prefill"]).fillna(False).astype(bool)
    held &= used["peak_kept_tokens"] >= used["n_tokens"].astype(float)
    used = used.assign(group=number[used.index], full_cache=held)
    units = unit_means(used, MEASURES, ["group"])
    cells = used.groupby(["group", *UNIT], sort=True)
    return units.assign(
        seeds=cells.size(), n_prefill=cells["n_prefill"].min(), full_cache=cells["full_cache"].all()
    )


def _over_units(units):
    """Indexed by group number: means, intervals and counts. `full_cache`: every unit keeps every token."""
    groups = units.groupby(level="group", sort=True)
    table = groups[list(MEASURES)].mean()
    for measure, name in INTERVALS.items():
        ends = {group: size_interval(values)[1:] for group, values in groups[measure]}
        table[f"{name}_low"] = pd.Series({group: low for group, (low, _) in ends.items()}, dtype=float)
        table[f"{name}_high"] = pd.Series({group: high for group, (_, high) in ends.items()}, dtype=float)
    table["n_rows"], table["n_units"], table["n_seeds"] = (
        groups["seeds"].sum(),
        groups.size(),
        groups["seeds"].max(),
    )
    table["full_cache"], table["n_prefill"] = groups["full_cache"].all(), groups["n_prefill"].min()
    return table


def _briefs(frame, groups, table):
    """[rows of `table`] the engine's notes on each row; `groups` of `frame` became its rows."""
    notes = [note for note in notes_of(frame.attrs.get("meta", {})) if note.instances]
    if not notes:
        return [[] for _ in range(len(table))]
    given = groups["given_json"].first().map(json.loads)
    places = zip(table["trace_id"], table["method"], given, table["budget_tokens"], strict=True)
    return [
        [brief for note in notes if (brief := note.brief(*place, None if pd.isna(budget) else int(budget)))]
        for *place, budget in places
    ]


def _notes(table, briefs, errors, curve_keys):
    """Warnings to read before trusting a row.

    `briefs`: the engine's notes, a list for each row. `errors`: one value per (group number, *UNIT); a
    group's number is its row in `table`.
    """
    notes = pd.Series("", index=table.index, dtype=object)
    for _, curve in table.groupby(curve_keys, sort=False):
        smaller = None
        for index, row in curve.sort_values("budget_tokens").iterrows():
            notes[index] = "; ".join(_missing_note(row) + briefs[index] + _rise_note(row, smaller, errors))
            smaller = row if row["n_units"] else smaller
    return notes


def _missing_note(row):
    missing = row["n_cells"] - row["n_rows"]
    return [f"{missing} of {row['n_cells']} cells have no result"] if missing else []


def _rise_note(row, smaller, errors):
    """An error that grows with the budget is often noise, so the note includes the paired interval."""
    if smaller is None or not row["rel_err_out_mean"] > smaller["rel_err_out_mean"]:
        return []
    rise, low, high = paired_difference(errors.loc[smaller.name], errors.loc[row.name])
    if not rise > 0:
        return []
    interval = "" if np.isnan(low) else f" [{low:+.2g}, {high:+.2g}]"
    return [f"error rises by {rise:.2g}{interval} from budget {smaller['budget_tokens']}"]
