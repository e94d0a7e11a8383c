"""Pictures of intervals and of bounds."""

import numpy as np
from kvanalysis.stats.intervals import mean_interval

from .canvas import BLUE, ORANGE, RED, level, panels
from .sample import LAYERS, SINKS, head, heads_of, heavy, norms, one_shot, value_norms, window

BUDGET = 64
BUDGETS = (64, 96)  # budgets in the paired comparison


def paired_intervals():
    """Draws one rule at two budgets on the same heads: each alone, and their difference head by head."""
    where = list(places())
    layers = np.array([layer for layer, _ in where])
    errors = {budget: np.array([mean_error(*place, budget) for place in where]) for budget in BUDGETS}
    difference = errors[BUDGETS[1]] - errors[BUDGETS[0]]
    figure, (left, right) = panels(2, 2.2)
    found = {}
    for (budget, values), colour, marker in zip(errors.items(), (RED, BLUE), "os", strict=True):
        name = f"{budget} tokens"
        height = -0.7 if budget == BUDGETS[0] else -1.1  # not on one line, because the intervals overlap
        text = f"{name}: {{:.2f}} [{{:.2f}}, {{:.2f}}]"
        found[name] = _over_layers(left, (values, layers), (colour, marker), height, text)
    found["difference"] = _over_layers(
        right, (difference, layers), (ORANGE, "D"), -0.9, "{:+.3f} [{:+.3f}, {:+.3f}]"
    )
    level(right, 0, "no difference", "black", "-")
    left.set(xlabel="mean error [1]", ylabel="layer")
    right.set(xlabel="difference, same heads [1]")
    for axes, title in ((left, "each alone"), (right, "paired")):
        axes.locator_params("x", nbins=5)
        axes.set_title(title, loc="left")
        axes.set_ylim(-1.6, len(LAYERS) + 1.6)
        axes.axhline(-0.4, color="#BBBBBB", linewidth=0.7)
        axes.legend(loc="upper right" if axes is left else "upper left")
    left.set_yticks([-0.9, *range(len(LAYERS))], ["mean", *LAYERS])
    right.set_yticks([-0.9, *range(len(LAYERS))], [])
    return figure, found


def _over_layers(axes, units, look, height, text):
    """Marks the mean of each layer's heads, and at `height` below them the overall mean with its interval.

    `units`: values and layers [n]; `look`: colour and marker. Returns {"mean", "low", "high"}.
    """
    (values, layers), (colour, marker) = units, look
    mean, low, high = mean_interval(values, layers)
    for row, layer in enumerate(LAYERS):
        axes.plot(values[layers == layer].mean(), row, marker, color=colour, markersize=4)
    axes.plot([low, high], [height, height], color=colour, linewidth=1.6)
    axes.plot(mean, height, marker, color=colour, markersize=4, label=text.format(mean, low, high))
    return {"mean": mean, "low": low, "high": high}


def places():
    """Yields (layer, query head): the first query head of every kv head of every layer."""
    for layer in LAYERS:
        queries, keys = heads_of(layer)
        yield from ((layer, query_head) for query_head in range(0, queries, queries // keys))


def mean_error(layer, query_head, budget):
    one = head(layer, query_head)
    return one.relative(one_shot(one, heavy(layer, query_head, budget))).mean()


def bound_slack():
    """Draws a target ε, the measured errors below it, and the slack between them."""
    one, target = head(), 0.5
    z, _ = one.outputs(window(one, BUDGET, SINKS))
    measured = norms(z - one.o) / norms(one.x) / value_norms(one)[0]
    high = np.quantile(measured, 0.99)
    within = (measured <= target).mean()
    figure, axes = panels(height=1.9)
    edges = np.geomspace(measured.min(), max(measured.max(), target), 40)
    axes.hist(measured, edges, color=BLUE, alpha=0.6)
    axes.set_xscale("log")
    level(
        axes, measured.mean(), f"mean {measured.mean():.3g}: slack {target / measured.mean():.3g}", BLUE, "-"
    )
    level(axes, high, f"99 % quantile {high:.3g}: slack {target / high:.3g}", ORANGE, "--")
    level(axes, target, f"target ε = {target}: {within:.0%} of rows within", RED, ":")
    axes.set(xlabel="eps_spectral of a row [1]", ylabel="rows")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, {"mean": measured.mean(), "p99": high, "within": within}


def bound_memory():
    """Draws the tokens that BalanceKV's formula requires for the norms of real keys, beside all tokens."""
    figure, axes = panels(height=1.9)
    found, epsilon = {}, 0.1
    for place, layer in enumerate(LAYERS):
        one = head(layer, 0)
        length, width = one.v.shape
        radius = norms(one.k).max()
        size = np.log(width * length) ** 2 * np.sqrt(width) / epsilon
        asked = np.log10(size) + 2 * radius**2 / np.sqrt(one.k.shape[1]) / np.log(10)
        axes.bar(place, asked, 0.6, color=BLUE, label="formula, constant 1, ε = 0.1" if not place else None)
        axes.text(place, asked, f"{asked:.0f}", ha="center", va="bottom", fontsize=7)
        found[f"layer {layer}"] = asked
    level(axes, np.log10(length), f"all {length} tokens", RED, "--", across=True)
    axes.set_xticks(range(len(LAYERS)), LAYERS)
    axes.set(xlabel="layer", ylabel="log10 of tokens to keep", ylim=(0, 1.15 * max(found.values())))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, found
