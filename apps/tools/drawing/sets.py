"""Pictures of the kept tokens and of the attention that they carry."""

import numpy as np

from .canvas import BLUE, GREEN, GREY, ORANGE, RED, SKY, level, panels
from .sample import SINKS, best_per_row, head, heavy, one_shot, window

BUDGET = 64
SPAN = 32  # tokens of a needle


def partition_error():
    """Shows that eviction undershoots the normaliser, while a weighted sample scatters around it."""
    one, count = head(29, 0), 128
    _, evicted = one.outputs(window(one, BUDGET, SINKS))
    middle = np.arange(SINKS, one.prompt)
    drawn = np.random.default_rng(0).choice(middle, count, replace=False)
    weights = np.ones(len(one.v))
    weights[drawn] = len(middle) / count
    kept = one_shot(one, np.union1d(np.arange(SINKS), drawn))
    _, sampled = one.outputs(kept, num=weights)
    figure, axes = panels(height=2.0)
    errors = {}
    for name, share, colour, mark in (
        ("sinks + window, weights 1", evicted, BLUE, "o"),
        ("weighted uniform sample", sampled, RED, "^"),
    ):
        errors[name] = np.abs(share - 1).mean()
        axes.plot(one.rows, share, mark, color=colour, markersize=2, label=f"{name}: {errors[name]:.3g}")
    level(axes, 1, "exact", "black", "-", across=True)
    axes.set(xlabel="row (token that asks)", ylabel="τ / Z [1]", ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="partition_err_mean", title_fontsize=7)
    return figure, errors


def kept_mass():
    """Draws one row's attention over the text, in two colours for kept and missed tokens."""
    one = head()
    kept = window(one, BUDGET, SINKS)
    mass = (one.x * kept).sum(1)
    row = int(np.argsort(mass)[len(mass) // 2])
    seen = np.arange(one.rows[row] + 1)
    figure, axes = panels(height=1.9)
    for mask, colour, name in ((~kept, GREY, "missed"), (kept, BLUE, "kept")):
        at = seen[mask[row, : len(seen)]]
        axes.vlines(
            at, 1e-6, one.x[row, at], color=colour, linewidth=0.7, label=f"{name}: {one.x[row, at].sum():.3f}"
        )
    axes.set(yscale="log", ylim=(1e-6, 1), xlabel="token", ylabel="attention of one row [1]")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="mass", title_fontsize=7)
    return figure, {"kept": mass[row], "missed": one.x[row, seen[~kept[row, : len(seen)]]].sum()}


def recalls():
    """Marks the kept tokens among those with the most attention of a row."""
    one = head()
    kept, best = window(one, BUDGET, SINKS), best_per_row(one, BUDGET + 1)
    mass = (one.x * kept).sum(1) / (one.x * best).sum(1)
    row = int(np.argsort(mass)[len(mass) // 2])
    order = np.argsort(-one.x[row], kind="stable")[: one.rows[row] + 1]
    size = int(kept[row].sum())
    ranks = np.arange(1, len(order) + 1)
    held = kept[row, order]
    index = held[:size].mean()
    figure, axes = panels(height=2.0)
    axes.loglog(ranks, one.x[row, order], color=GREY, linewidth=0.8, zorder=1)
    axes.plot(ranks[held], one.x[row, order][held], "o", color=BLUE, markersize=3, label="kept")
    axes.plot(
        ranks[:size][~held[:size]],
        one.x[row, order][:size][~held[:size]],
        "x",
        color=RED,
        markersize=4,
        label="among the best, but not kept",
    )
    level(axes, size + 0.5, f"the {size} best | the rest", "black", ":")
    axes.set(xlabel="rank by attention", ylabel="attention of one row [1]", ylim=(1e-6, 1))
    axes.set_title(f"index recall {index:.2f}, mass recall {mass[row]:.2f}", loc="left")
    axes.legend(loc="lower left")
    return figure, {"index": index, "mass": mass[row]}


def needle_mass():
    """Draws how much of their attention spans at the start, 40 % and 88 % of the prompt keep."""
    one = head()
    caches = {
        "newest": one_shot(one, np.arange(one.prompt - BUDGET, one.prompt)),
        "sinks + newest": one_shot(one, np.r_[0:SINKS, one.prompt - BUDGET + SINKS : one.prompt]),
        "heavy + recent": one_shot(one, heavy(15, 0, BUDGET)),
    }
    places = (0, 0.4, 0.88)
    figure, axes = panels(height=2.0)
    found = {}
    for number, ((name, kept), colour, hatch) in enumerate(
        zip(caches.items(), (SKY, ORANGE, GREEN), ("", "//", ".."), strict=True)
    ):
        shares = []
        for place in places:
            first = min(int(place * one.prompt), one.prompt - SPAN)
            span = slice(first, first + SPAN)
            shares.append((one.x[:, span] * kept[:, span]).sum() / one.x[:, span].sum())
        axes.bar(
            np.arange(3) + 0.27 * (number - 1),
            shares,
            0.25,
            color=colour,
            hatch=hatch,
            label=name,
            edgecolor="white",
        )
        for place, share in enumerate(shares):
            axes.text(place + 0.27 * (number - 1), share + 0.02, f"{share:.2f}", ha="center", fontsize=6)
        found |= {f"{name} {place}": share for place, share in zip(places, shares, strict=True)}
    axes.set_xticks(range(3), [f"span at {place:.0%}" for place in places])
    axes.set(ylabel="share of its attention kept [1]", ylim=(0, 1.12))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, found
