"""The table of `kvreplay cluster` in shapes that figures draw: curves of a measure by head and view."""

import pandas as pd

from .stats import UNIT, mean_interval
from .words import count

VIEWS = ("keys", "keys_unrotated", "values")


def rows_of(table, measure):
    """Rows of one measure that have a value, in the views that are drawn; `x` and `param` as numbers."""
    rows = table[(table["measure"] == measure) & table["view"].isin(VIEWS) & table["value"].notna()]
    numbers = {name: pd.to_numeric(rows[name], errors="coerce") for name in ("param", "x", "value")}
    return rows.assign(**numbers)


def curve(table, measure, over=""):
    """`rows_of` a measure, its value divided by the scalar `over` of the same head and view."""
    rows = rows_of(table, measure)
    if not over:
        return rows
    by = [*UNIT, "view"]
    scale = rows_of(table, over)[[*by, "value"]].rename(columns={"value": over})
    rows = rows.merge(scale, on=by)
    return rows.assign(value=rows["value"] / rows[over])[rows[over] > 0]


def intervals(rows, by):
    """Mean over heads with its 95 % bootstrap interval, and their number, per group."""
    groups = rows.groupby(by, sort=True)["value"]
    found = [(*key, *mean_interval(values.to_numpy()), len(values)) for key, values in groups]
    return pd.DataFrame(found, columns=[*by, "mean", "low", "high", "n_heads"])


def lower_heads(rows, first, second):
    """(heads where `first` has the lower value, heads that have both views); one row per head and view."""
    by_view = rows.set_index([*UNIT, "view"])["value"].unstack("view")
    if first not in by_view or second not in by_view:
        return 0, 0
    both = by_view.dropna(subset=[first, second])
    return int((both[first] < both[second]).sum()), len(both)


def heads_note(table):
    heads, texts = len(table.drop_duplicates(UNIT)), table["prompt"].nunique()
    model = table["model"].iloc[0] or "unnamed model"
    return (
        f"{count(heads, 'kv head')} from {count(texts, 'text')} of trace {table['trace_id'].iloc[0][:12]}"
        f" ({model})."
        " Bands: 95 % bootstrap over heads. Keys as stored carry their rotation; un-rotated"
        " ones are"
        " rotated back to position 0."
    )
