"""Stored tokens against the measured epsilon of balancekv_stream and subgen_stream, on log-log axes."""

import numpy as np

from ...data.extras import extra
from ...drawing.log_ticks import plain_log, subs_for
from ...drawing.panel_grid import draw_empty_note
from ...drawing.style import COLUMN_WIDTH, finish, new_figure, styles_for
from ...stats.fits import slope
from ...stats.intervals import UNIT, used_rows
from ...stats.verdict import Verdict, near, of_counts
from .discrepancy import walk_of

STATED = {"balancekv_stream": -1.0, "subgen_stream": -2.0}
OWN_EPSILON = {"balancekv_stream": "eps_frobenius_mean", "subgen_stream": "eps_spectral_mean"}
PLACES = {"memory": "synthetic, small norms", "real": "recorded trace"}
TOLERANCE = 0.25  # tolerance of an exponent, as in epsilon_sweep: half a power is already another law
LN10 = float(np.log(10))
HEIGHT = 1.9  # inches
WIDEST, THINNER = 2.8, 0.8  # points; the first curve is the widest, so that coinciding curves all show


def memory_table(run, step):
    """One row per (head, method instance), seeds averaged: stored tokens, and epsilon as defined in its
    theorem.

    `stored_tokens` is peak_bytes over the bytes of a row of the exact cache.
    """
    frame = used_rows(run.frame(step))
    frame = frame[frame["method"].isin(STATED)]
    frame = frame.assign(
        place=PLACES[step],
        name=[_name(cell) for _, cell in frame.iterrows()],
        stored_tokens=frame["peak_bytes"] / (frame["full_bytes"] / frame["n_tokens"].astype(float)),
        epsilon=[row[OWN_EPSILON[row["method"]]] for _, row in frame.iterrows()],
        log10_t=extra(frame, "theory_log10_t"),
        log10_tokens=frame["bound_log10_tokens"],
    )
    keys = [*UNIT, "place", "method", "name", "params_json", "n_tokens"]
    measures = ["stored_tokens", "epsilon", "log10_t", "log10_tokens"]
    return frame.groupby(keys, as_index=False)[measures].mean()


def _name(cell):
    method = cell["method"]
    return f"{method}, {walk_of(cell)}" if method == "balancekv_stream" else method


def memory_slopes(memory):
    """{(place, name): Slope of the stored tokens against the measured epsilon}, for heads with two points."""
    groups = memory.groupby(["place", "name"])
    found = {key: slope(rows, "epsilon", "stored_tokens", by="params_json") for key, rows in groups}
    return {key: fitted for key, fitted in found.items() if fitted is not None}


def memory_figure(memory, width):
    figure, wide = new_figure(width), width > COLUMN_WIDTH
    panels = figure.subplots(1, 2, sharey=True) if wide else figure.subplots(2, 1)
    styles = styles_for(sorted(memory["name"].unique()), set())
    for axes, place in zip(panels, PLACES.values(), strict=True):
        rows = memory[memory["place"] == place]
        axes.set_title(place)
        axes.set(xscale="log", yscale="log", ylabel="stored, in tokens of an exact cache")
        if rows.empty:
            draw_empty_note(axes)
        for name, mine in rows.groupby("name", sort=True):
            means = (
                mine.groupby("params_json")[["epsilon", "stored_tokens"]].mean().sort_values("stored_tokens")
            )
            _curve(axes, means["epsilon"], means["stored_tokens"], styles, name)
        plain_log(axes.xaxis, subs_for(rows["epsilon"]))
        plain_log(axes.yaxis)
    handles = [_curve(panels[0], [], [], styles, name) for name in styles]
    for axes in panels if wide else panels[1:]:
        axes.set_xlabel("measured epsilon, the theorem's own form")
    if wide:
        panels[1].set_ylabel("")
    note = (
        "Means over heads and seeds; sizes are set, epsilon is measured: ||z - o|| / (||x|| ||V||),"
        " Frobenius norm for"
        " balancekv_stream, spectral norm for subgen_stream. The caption gives slopes with intervals."
    )
    finish(
        figure,
        handles,
        list(styles),
        note,
        HEIGHT if wide else 2.3 * HEIGHT,
        hspace=0.3,
        wspace=0.08,
        top=0.24,
    )
    return figure


def _curve(axes, x, y, styles, name):
    width = max(1.0, WIDEST - THINNER * list(styles).index(name))
    style = styles[name]
    return axes.plot(x, y, color=style.colour, marker=style.marker, linewidth=width, markersize=3 + width)[0]


def memory_caption(memory, powers):
    words = "; ".join(f"{place}, {name}: {found.over_heads()}" for (place, name), found in powers.items())
    stated = "Stated: -1 for BalanceKV, -2 for SubGen."
    return f"Slope of ln(stored) against ln(epsilon): {words}. {stated} {_asks(memory)}"


def _asks(memory):
    rows = memory[memory["place"] == PLACES["real"]].dropna(subset=["log10_t"])
    if rows.empty:
        return ""
    t, n = rows["log10_t"], int(rows["n_tokens"].max())
    return (
        "On the recorded trace BalanceKV's theorem with constants 1 requires batches of"
        f" 10^{t.min():.0f} to 10^{t.max():.0f} tokens (e^{t.min() * LN10:.0f} to"
        f" e^{t.max() * LN10:.0f}) where n = {n}, so sizes are set here instead."
    )


def memory_verdicts(powers):
    how = (
        "the 95 % interval over layers of the slope on log-log axes lies within"
        f" {TOLERANCE:g} of the stated exponent; does not hold if all of it lies outside, else not decided"
    )
    verdicts = []
    for (place, name), found in powers.items():
        stated = STATED[name.split(",")[0]]
        claim = f"Memory of {name} grows as epsilon^{stated:.0f} ({place})"
        outcome = near(stated, found.low, found.high, TOLERANCE)
        source = "BalanceKV, Section 3; SubGen, Theorem 1"
        verdicts.append(Verdict(claim, source, how, outcome, found.over_heads()))
    return verdicts


def asked(memory):
    """Verdict on whether the theorem's batch is smaller than the text; otherwise the theorem says nothing."""
    t = memory[memory["place"] == PLACES["real"]].dropna(subset=["log10_t"])
    below = 10.0 ** np.minimum(t["log10_t"], 300) < t["n_tokens"].astype(float)
    return Verdict(
        "The batch that the theorem requires (constants 1) is smaller than the recorded text",
        "BalanceKV, Theorems 3.1 to 3.5",
        "log10 t of every head against log10 n; a batch of n tokens or more keeps everything",
        of_counts(int(below.sum()), len(below)),
        _asks(memory),
    )
