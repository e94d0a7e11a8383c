"""Pictures of intervals and of bounds."""

import numpy as np
from kvanalysis.stats.intervals import bootstrap_means, mean_interval

from .canvas import BLUE, GREY, ORANGE, RED, level, panels
from .sample import LAYERS, SINKS, head, heads_of, heavy, norms, one_shot, value_norms, window

BUDGET = 64
BUDGETS = (64, 96)  # of the paired comparison


def paired_bootstrap():
    """One rule at two budgets on the same heads: each alone, and their difference head by head."""
    errors = {budget: np.array([mean_error(*place, budget) for place in places()]) for budget in BUDGETS}
    figure, (left, right) = panels(2, 2.2)
    found = {}
    for (budget, values), colour, hatch in zip(errors.items(), (RED, BLUE), ("", "//"), strict=True):
        mean, low, high = mean_interval(values)
        text = f"{budget} tokens: {mean:.2f} [{low:.2f}, {high:.2f}]"
        left.hist(bootstrap_means(values), 30, color=colour, alpha=0.55, hatch=hatch, label=text)
        found[f"{budget} tokens"] = {"mean": mean, "low": low, "high": high}
    left.set(xlabel="mean error, heads redrawn", ylabel="resamples")
    difference = errors[BUDGETS[1]] - errors[BUDGETS[0]]
    mean, low, high = mean_interval(difference)
    right.hist(bootstrap_means(difference), 30, color=ORANGE)
    level(right, 0, "no difference", "black", "-")
    level(right, low, f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]", GREY)
    right.axvline(high, color=GREY, linestyle="--", linewidth=1.2)
    right.set(xlabel="mean difference, same heads")
    for axes, title in ((left, "each alone"), (right, "paired")):
        axes.locator_params("x", nbins=5)
        axes.set_title(title, loc="left")
        axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
        axes.legend(loc="upper right" if axes is left else "upper left")
    found["difference"] = {"mean": mean, "low": low, "high": high}
    return figure, found


def places():
    """One query head of every kv head of every layer."""
    for layer in LAYERS:
        queries, keys = heads_of(layer)
        yield from ((layer, query_head) for query_head in range(0, queries, queries // keys))


def mean_error(layer, query_head, budget):
    one = head(layer, query_head)
    return one.relative(one_shot(one, heavy(layer, query_head, budget))).mean()


def bound_slack():
    """A target, the measured error below it, and what lies between them."""
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
    """What BalanceKV's formula asks for with the norms of real keys, beside all tokens that there are."""
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
    axes.set_xticks(range(len(LAYERS)), [f"layer {layer}" for layer in LAYERS])
    axes.set(ylabel="log10 of tokens to keep", ylim=(0, 1.15 * max(found.values())))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, found
