"""BalanceKV's theorems: discrepancy of the walk compared with coins, and memory against the measured epsilon.

Steps: `walk_N` for each prompt length N (self_balancing_walk, kept lists saved, a synthetic trace), `memory`
(balancekv_stream and subgen_stream on that trace), `real` (these methods on the recorded trace).
"""

import re
from functools import partial

import numpy as np
import pandas as pd

from ...drawing.log_ticks import plain_log
from ...drawing.saving import Picture
from ...drawing.style import DASHED, finish, new_figure, styles_for
from ...errors import FigureError
from ...stats.fits import fit, slope
from ...stats.intervals import UNIT, mean_interval, over_units, used_rows
from ...stats.verdict import RULE, Verdict, judge
from .discrepancy import COIN, discrepancy, walk_of
from .memory_powers import (
    PLACES,
    asked,
    memory_caption,
    memory_figure,
    memory_slopes,
    memory_table,
    memory_verdicts,
)

HEIGHT = 1.9  # inches


def data(run):
    """(discrepancies of the walks, their slopes, memory, slopes of memory)."""
    walks = walk_table(run)
    memory = pd.concat([memory_table(run, step) for step in PLACES], ignore_index=True)
    slopes = {name: slope(rows, "tokens", "discrepancy") for name, rows in walks.groupby("walk")}
    slopes = {name: found for name, found in slopes.items() if found is not None}
    return walks, slopes, memory, memory_slopes(memory)


def draw(_run, found):
    walks, slopes, memory, powers = found
    paint, caption = partial(_walk_figure, walks, slopes), _walk_caption(walks, slopes)
    return [
        Picture("Discrepancy of the walk", walks, paint, caption, "discrepancy"),
        Picture(
            "Memory against the measured epsilon", memory, partial(memory_figure, memory),
            memory_caption(memory, powers), "memory",
        ),
    ]  # fmt: skip


def claims(_run, found):
    walks, slopes, memory, powers = found
    return [*walk_verdicts(walks, slopes), *memory_verdicts(powers), asked(memory)]


def walk_table(run):
    """One row per (head, walk, tokens): discrepancy, mean over seeds."""
    trace = run.recorded(_synthetic(run))
    rows = []
    for step in run.config.steps:
        if not re.fullmatch(r"walk_\d+", step.name):
            continue
        saved, frame = run.arrays("kept", step.name), used_rows(run.frame(step.name))
        for _, cell in frame.iterrows():
            place = cell["prompt"], cell["layer"], cell["kv_head"]
            n = int(cell["n_prefill"])
            k, v = (trace.tensor(*place[:2], name)[place[2], :n] for name in "kv")
            scale = float(trace.attribute("scaling", *place[:2]))
            found = discrepancy(k, v, saved.lists(cell["key"])[0], scale)
            rows.append({name: cell[name] for name in UNIT} | {"walk": walk_of(cell), "tokens": n}
                        | {"discrepancy": found})  # fmt: skip
    if not rows:
        raise FigureError(
            f"{run.config.path}: walk_theorems needs run steps named walk_N with finished cells"
        )
    return pd.DataFrame(rows).groupby([*UNIT, "walk", "tokens"], as_index=False)["discrepancy"].mean()


def _synthetic(run):
    made = [step.name for step in run.config.steps if step.command == "synth"]
    if not made:
        raise FigureError(f"{run.config.path}: walk_theorems needs a synth step")
    return made[0]


def _walk_figure(walks, slopes, width):
    figure = new_figure(width)
    axes = figure.subplots()
    styles = styles_for(sorted(walks["walk"].unique()), {COIN})
    for name, rows in walks.groupby("walk", sort=True):
        means = rows.groupby("tokens")["discrepancy"].mean()
        bands = [mean_interval(over_units(own, "discrepancy"))[1:] for _, own in rows.groupby("tokens")]
        low, high = np.transpose(bands)
        label = f"{name}, exponent {slopes[name].over_heads()}" if name in slopes else name
        axes.plot(means.index, means, color=styles[name].colour, marker=styles[name].marker, label=label)
        styles[name].band(axes, means.index, low, high)
    _guides(axes, walks)
    axes.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="discrepancy / its scale")
    axes.set_xscale("log", base=2)
    plain_log(axes.yaxis, (1, 1.5, 2, 3, 5, 7))
    axes.set_xticks(sorted(walks["tokens"].unique()), sorted(walks["tokens"].unique()))
    note = (
        "Synthetic keys with max ||k||^2/sqrt(d) near 1, queries of the same norm. Bands: 95 % over heads,"
        " each in a layer of its own; seeds averaged first."
    )
    finish(figure, *axes.get_legend_handles_labels(), note, HEIGHT)
    return figure


def _guides(axes, walks):
    """Draws sqrt(n) and ln(n) through the coin's (else the first walk's) smallest n."""
    n = np.array(sorted(walks["tokens"].unique()), dtype=float)
    names = set(walks["walk"])
    anchor = walks[walks["walk"] == (COIN if COIN in names else min(names))]
    start = anchor[anchor["tokens"] == n[0]]["discrepancy"].mean()
    axes.plot(n, start * np.sqrt(n / n[0]), color="#999999", linestyle=DASHED, linewidth=0.8, label="sqrt(n)")
    axes.plot(
        n, start * np.log(n) / np.log(n[0]), color="#999999", linestyle=":", linewidth=0.8, label="ln(n)"
    )


def _walk_caption(walks, slopes):
    words = "; ".join(f"{name} {found.over_heads()}" for name, found in slopes.items())
    n = walks["tokens"]
    return (
        f"Exponent of the discrepancy in n, {n.min()} to {n.max()}: {words}; sqrt(n) has 0.50, ln(n) has"
        f" {_log_power(n):.2f} on this range. With the literal c = 30 ln(n/delta) signs are fair coins until"
        " about c d/2 tokens; the"
        " smaller c, which the theorem does not cover (p is clamped to [0, 1]), shows the effect of"
        " balancing."
    )


def _log_power(tokens):
    """The fitted exponent of ln(n) itself on these n."""
    n = np.unique(np.asarray(tokens, dtype=float))
    return fit(n, np.log(n))


def walk_verdicts(walks, slopes):
    middle = (_log_power(walks["tokens"]) + 0.5) / 2
    how = (
        f"95 % interval over heads of the exponent, claimed below {middle:.2f}, midway between ln n's and"
        f" 0.5: {RULE}"
    )
    verdicts = []
    for name in sorted(set(slopes) - {COIN}):
        found = slopes[name]
        outcome = judge([(found.low, found.high)], middle)
        claim = f"The walk's discrepancy ({name}) grows as ln n rather than as sqrt n"
        text = f"exponent {found.over_heads()}"
        text += f"; coin {slopes[COIN].over_heads()}" if COIN in slopes else ""
        verdicts.append(Verdict(claim, "BalanceKV, Theorems 3.1 to 3.5", how, outcome, text))
    return verdicts
