"""Occupancy of BalanceKV's MergeAndReduce over time, from the weights saved by balancekv_stream."""

from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

from ...drawing.saving import Picture
from ...drawing.style import finish, new_figure
from ...errors import FigureError
from ...stats.verdict import FAILS, HOLDS, UNDECIDED, Verdict

BIT_COLOUR = "#D55E00"
TEXT_ROOM = 0.032  # share of the axis; a count that is constant for longer is printed
HEIGHT = 2.0  # inches


def data(run):
    """[occupancy of each cell], in the order of _cells."""
    return [occupancy(run, cell) for _, cell in _cells(run).iterrows()]


def draw(run, tables):
    """The picture of the first head."""
    if not tables:
        return []
    cell, table = _cells(run).iloc[0], tables[0]
    title = "Levels of the merge tree over time"
    return [Picture(title, pd.concat(tables), partial(_figure, table, cell), _caption(cell, table))]


def _cells(run):
    frame = run.frame()
    rows = frame[(frame["method"] == "balancekv_stream") & (frame["status"] == "ok")]
    if (rows["n_prefill"] != 1).any():
        raise FigureError(
            f"{run.config.path}: merge_tree follows the tree from token 0: replay.prefill must be 1"
        )
    return rows.sort_values(["trace_id", "prompt", "layer", "kv_head", "seed"])


def occupancy(run, cell):
    """One row per (tokens j, level): entries of the denominator there, and the prediction from the bits of
    floor(j/t).

    `predicted` is j mod t at level 0, whether bit level-1 is set (1 or 0) at levels between, NaN at the top
    level, which never empties.
    """
    saved = run.arrays("kept")[cell["key"]]
    batch, top = cell["params"]["batch"], cell["params"]["levels"]
    ends, den = saved["kept_off"], saved["den"]
    entries = np.array([_levels(den[a:b], top) for a, b in pairwise(ends)])
    fed = np.arange(1, len(entries) + 1)
    predicted = np.full(entries.shape, np.nan)
    predicted[:, 0] = fed % batch if top > 0 else fed
    for level in range(1, top):
        predicted[:, level] = (fed // batch) >> (level - 1) & 1
    places = {name: cell[name] for name in ("layer", "kv_head", "seed")}
    j, level = (x.ravel() for x in np.meshgrid(fed, np.arange(top + 1), indexing="ij"))
    return pd.DataFrame(
        places
        | {"tokens": j, "batches": j // batch, "level": level, "weight": 2.0**level}
        | {"entries": entries.ravel(), "predicted": predicted.ravel()}
    )


def _levels(weights, top):
    """Entries on each level 0..top; an entry of level l weighs 2^l, a removed entry weighs 0."""
    return np.bincount(np.log2(weights[weights > 0]).astype(int), minlength=top + 1)


def claims(_run, tables):
    if not tables:
        claim = "A level is occupied exactly when its bit of floor(j/t) is set"
        return [Verdict(claim, "BalanceKV, Fig. 1", "", UNDECIDED, "no balancekv_stream cell finished")]
    everything = pd.concat(tables)
    wrong_first, filled, empty, bits = 0, 0, 0, 0
    for level, rows in everything.groupby("level"):
        known = rows[rows["predicted"].notna()]
        if level == 0:
            wrong_first = int((known["entries"] != known["predicted"]).sum())
            continue
        bits += len(known)
        filled += int(((known["entries"] > 0) & (known["predicted"] == 0)).sum())
        empty += int(((known["entries"] == 0) & (known["predicted"] == 1)).sum())
    verdict = Verdict(
        "Level i+1 is occupied exactly when bit i of floor(j/t) is set; level 0 holds j mod t",
        "BalanceKV, Fig. 1 and Algorithm 3",
        "every step of every head is compared; a set bit may stay empty only if all inputs of the level were"
        " empty",
        HOLDS if not (wrong_first or filled or empty) else FAILS,
        f"{len(tables)} heads: level 0 differs in {wrong_first} of {(everything['level'] == 0).sum()} steps;"
        f" of {bits} bits, {filled} are 0 where the level is occupied and {empty} are 1 where it is empty",
    )
    return [verdict]


def _figure(table, cell, width):
    figure = new_figure(width)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    grid = table.pivot(index="level", columns="tokens", values="entries").to_numpy()
    most = max(2, int(grid.max()))
    tokens, levels = grid.shape[1], grid.shape[0]
    edges = np.arange(tokens + 1) + 0.5
    shown = np.ma.masked_equal(grid, 0)
    upper.pcolormesh(
        edges, np.arange(levels + 1) - 0.5, shown, cmap="cividis", norm=LogNorm(1, most), rasterized=True
    )
    for level in range(1, levels):
        _counts(upper, grid[level], level, tokens, most)
        _bits(upper, table[table["level"] == level], level)
    upper.set(ylabel="level, weight 2^level", yticks=range(levels))
    upper.grid(visible=False)
    [held] = lower.plot(np.arange(1, tokens + 1), grid.sum(axis=0), color="#0072B2")
    lower.set(xlabel="tokens fed, j", ylabel="entries", ylim=(0, None), xlim=(0, tokens))
    bit = upper.plot([], [], color=BIT_COLOUR, linewidth=2)[0]
    note = (
        f"Denominator's structure of layer {cell['layer']}, kv head {cell['kv_head']}, seed"
        f" {cell['seed']}: t"
        f" = {cell['params']['batch']}, T = {cell['params']['levels']}. Colour and numbers: entries; white:"
        " empty."
    )
    finish(
        figure, [bit, held], ["bit of floor(j/t) is set", "entries of all levels"], note, HEIGHT, hspace=0.14
    )
    return figure


def _counts(axes, entries, level, tokens, most):
    """Prints the number of entries where it is constant for long enough to be read."""
    starts = np.flatnonzero(np.diff(entries, prepend=-1))
    for start, end in zip(starts, [*starts[1:], tokens], strict=True):
        if entries[start] and end - start >= TEXT_ROOM * tokens:
            dark = np.log(entries[start]) < 0.6 * np.log(most)
            axes.text((start + end) / 2 + 0.5, level, entries[start], ha="center", va="center", fontsize=5.5,
                      color="white" if dark else "black")  # fmt: skip


def _bits(axes, rows, level):
    set_ = rows["tokens"].where(rows["predicted"] == 1)
    axes.plot(set_, np.full(len(set_), level - 0.42), color=BIT_COLOUR, linewidth=1.6, solid_capstyle="butt")


def _caption(cell, table):
    held = table.groupby("tokens")["entries"].sum()
    last = table[table["tokens"] == table["tokens"].max()]
    counts = ", ".join(f"{entries}" for entries in last["entries"])
    p = int(last["batches"].iloc[0])
    return (
        f"After {held.index[-1]} tokens p = floor(j/t) = {p} (binary {p:b}); entries on levels 0 to"
        f" {len(last) - 1}: {counts}; at most {held.max()} entries at once where the exact cache holds"
        f" {held.index[-1]}."
        " The top level never empties. The walks use the theorem's literal constant, clamped."
    )
