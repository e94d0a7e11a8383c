"""Pictures of sparsity, heavy tails and sinks."""

import numpy as np

from .canvas import BLUE, GREY, ORANGE, RED, SKY, level, panels
from .sample import LAYERS, attention, heads_of

THRESHOLD = 0.01  # as a share of the row's maximum
LAYER, QUERY_HEAD = 15, 0


def share_below(x, first=0):
    """Share of the causal entries below THRESHOLD times their row's maximum, for tokens from `first` on."""
    below = entries = 0
    for row in range(max(1, first), len(x)):
        seen = x[row, first : row + 1]
        below += int((seen < THRESHOLD * seen.max()).sum())
        entries += len(seen)
    return below / entries


def sparsity():
    """Draws one row and a hundredth of its maximum, with the sink and without."""
    x = attention(LAYER, QUERY_HEAD)[0]
    row = x[-1]
    shares = share_below(x), share_below(x, first=1)
    figure, axes = panels(height=2.0)
    axes.semilogy(row, ".", color=SKY, markersize=2)
    for top, colour, dash, name in (
        (row.max(), RED, "--", f"1 % of the maximum: {shares[0]:.2f} below"),
        (row[1:].max(), BLUE, ":", f"1 % of the next, token 0 left out: {shares[1]:.2f}"),
    ):
        level(axes, THRESHOLD * top, name, colour, dash, across=True)
    axes.set(xlabel="token", ylabel="attention of one row [1]", ylim=(1e-7, 1.5))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=2)
    return figure, {"sparsity": shares[0], "sparsity_no_sink": shares[1]}


def top_share(scores, share):
    """The part of the sum that the `share` of tokens with the largest scores holds."""
    ordered = np.sort(scores)[::-1]
    return ordered[: round(share * len(ordered))].sum() / ordered.sum()


def accumulated_score():
    """Draws sorted column sums beside those of uniform attention."""
    length = len(attention(LAYER, QUERY_HEAD)[0])
    null = np.array([(1 / np.arange(first + 1, length + 1)).sum() for first in range(length)])
    figure, axes = panels(height=2.0)
    found = {}
    curves = [(f"layer {layer}", attention(layer, QUERY_HEAD)[0].sum(0)) for layer in (0, LAYER)]
    for (name, scores), colour, dash in zip(
        [*curves, ("null: uniform attention", null)], (ORANGE, BLUE, GREY), ("-", "--", ":"), strict=True
    ):
        share = top_share(scores, 0.2)
        axes.loglog(
            range(1, length + 1),
            np.sort(scores)[::-1],
            color=colour,
            linestyle=dash,
            label=f"{name}: top 20 % hold {share:.0%}",
        )
        found[name] = share
    axes.set(xlabel="rank of the token", ylabel="accumulated score A", ylim=(1e-2, None))
    axes.legend(loc="lower left")
    return figure, found


def sink_mass():
    """Draws the mean attention on token 0, head by head."""
    figure, axes = panels(height=1.9)
    found = {}
    for place, layer in enumerate(LAYERS):
        shares = [attention(layer, head)[0][1:, 0].mean() for head in range(heads_of(layer)[0])]
        spots = place + np.linspace(-0.2, 0.2, len(shares))
        axes.plot(spots, shares, "o", color=SKY, markersize=4, label="one query head" if not place else None)
        mean = np.mean(shares)
        axes.plot(
            [place - 0.3, place + 0.3],
            [mean, mean],
            color=RED,
            label="mean of the layer" if not place else None,
        )
        axes.text(place + 0.33, mean, f"{mean:.2f}", fontsize=6.5, va="center", color=RED)
        found[f"layer {layer}"] = mean
    axes.set_xticks(range(len(LAYERS)), LAYERS)
    axes.set(xlabel="layer", ylabel="attention on token 0 [1]", ylim=(-0.03, 1))
    axes.legend(loc="upper left")
    return figure, found
