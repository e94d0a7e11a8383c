"""Pictures of the error of the attention output."""

import numpy as np

from .canvas import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, level, note, panels
from .sample import SINKS, best_per_row, causal, head, heavy, norms, one_shot, value_norms, window

BUDGET = 64
ONE_ROW = (15, 3)  # layer and query head in error_of_one_output and missed_mass_and_gap
LADDER = (23, 0)  # and those in regret_ladder
SPLIT = (11, 0)  # and those in distance_split
LAST_ROWS = 256  # rows in the ratio of norms


def plane_coordinates(first, *others):
    """Two coordinates of each vector in the plane of `first` and the next vector; lengths in it are exact."""
    along = first / np.linalg.norm(first)
    aside = others[0] - others[0] @ along * along
    aside /= np.linalg.norm(aside)
    return [np.array([vector @ along, vector @ aside]) for vector in (first, *others)]


def error_of_one_output():
    """Draws o and z of one row in the plane that they span."""
    one = head(*ONE_ROW)
    z, _ = one.outputs(window(one, BUDGET, SINKS))
    relative = norms(z - one.o) / norms(one.o)
    row = int(np.argmin(np.abs(relative - 0.5)))
    o, z = plane_coordinates(one.o[row], z[row])
    e, size = np.linalg.norm(z - o), np.linalg.norm(o)
    cosine = o @ z / size / np.linalg.norm(z)
    figure, axes = panels(height=1.9)
    for tip, colour, name in ((o, BLUE, "o, exact"), (z, RED, "z, from the cache")):
        arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, (0, 0), arrowprops=arrow)
        axes.plot([], [], color=colour, label=f"{name}: length {np.linalg.norm(tip):.3g}")
    axes.plot(*zip(o, z, strict=True), color=GREY, linestyle="--", label=f"e = ‖z − o‖ = {e:.3g}")
    axes.plot(*zip((0, 0), o, z, strict=True), alpha=0)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel="along o", ylabel="across")
    axes.margins(0.08)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    axes.set_title(f"relative error {e / size:.3g}, cosine {cosine:.3f}", loc="left")
    return figure, {"relative": e / size, "cosine": cosine}


def variants_of_the_error():
    """Draws the errors of all rows of one head, and where each summary lies among them."""
    one = head()
    z, _ = one.outputs(window(one, BUDGET, SINKS))
    e, size = norms(z - one.o), norms(one.o)
    relative = e / size
    last = slice(-LAST_ROWS, None)
    found = {
        "median (_p50)": np.quantile(relative, 0.5),
        "mean (rel_err_out_mean)": relative.mean(),
        "95 % quantile (_p95)": np.quantile(relative, 0.95),
        "ratio of norms (rel_err_fro)": np.sqrt((e[last] ** 2).sum() / (size[last] ** 2).sum()),
        "clamped (rel_err_clamped)": (e / norms(np.maximum(one.o, 1e-8))).mean(),
    }
    figure, axes = panels(height=2.1)
    axes.hist(relative, 40, color=SKY, alpha=0.6)
    dashes = ("-", "-", "--", ":", "-.")
    for (name, value), colour, dash in zip(
        found.items(), (BLUE, RED, GREEN, PINK, ORANGE), dashes, strict=True
    ):
        level(axes, value, f"{name}: {value:.3g}", colour, dash)
    axes.set(xlabel="‖z − o‖ / ‖o‖ of a row [1]", ylabel="rows")
    axes.legend()
    return figure, {name.split(" (")[0]: value for name, value in found.items()}


def epsilon_forms():
    """Draws the errors of one head divided by the norms of the theorems."""
    one = head()
    z, _ = one.outputs(window(one, BUDGET, SINKS))
    e, x = norms(z - one.o), norms(one.x)
    spectral, frobenius = value_norms(one)
    lines = {
        "relative: ‖o‖": e / norms(one.o),
        "eps_spectral: ‖x‖₂ ‖V‖_op": e / x / spectral,
        "eps_frobenius: ‖x‖₂ ‖V‖_F": e / x / frobenius,
    }
    figure, axes = panels(height=2.0)
    for (name, values), colour, dash in zip(lines.items(), (BLUE, RED, GREEN), ("-", "--", ":"), strict=True):
        axes.semilogy(
            one.rows, values, color=colour, linestyle=dash, label=f"{name}, mean {values.mean():.3g}"
        )
    axes.set(xlabel="row (token that asks)", ylabel="e over … [1]")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, {name.split(":")[0]: values.mean() for name, values in lines.items()}


def missed_mass_and_gap():
    """Draws o between z and the output of the missed tokens: the error of z is missed mass times gap."""
    one = head(*ONE_ROW)
    kept = window(one, BUDGET, SINKS)
    z, _ = one.outputs(kept)
    missed = (one.x * ~kept).sum(1)
    row = int(np.argmin(np.abs(missed - 0.3)))
    lost = (one.x[row] * ~kept[row]) @ one.v / missed[row]
    o, z, lost = plane_coordinates(one.o[row], z[row], lost)
    gap = np.linalg.norm(lost - z)
    figure, axes = panels(height=1.9)
    axes.plot(*zip(z, lost, strict=True), color=GREY, linestyle="--", zorder=1)
    points = (
        (z, RED, "s", "z, from kept tokens"),
        (o, BLUE, "o", "o, exact"),
        (lost, GREEN, "^", "missed tokens"),
    )
    for point, colour, marker, name in points:
        axes.plot(*point, marker, color=colour, label=name, markersize=6)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    axes.margins(0.15)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel="along o", ylabel="across")
    error = np.linalg.norm(o - z)
    axes.set_title(f"error {error:.3g} = missed mass {missed[row]:.3f} × gap {gap:.3g}", loc="left")
    return figure, {"error": error, "missed": missed[row], "gap": gap}


def regret_ladder():
    """Draws the errors of perfect choices, and how much larger the error of a rule is."""
    one, budget = head(*LADDER), BUDGET
    static = np.argsort(-one.x[:, : one.prompt].sum(0), kind="stable")[:budget]
    best = one_shot(one, []) | best_per_row(one, budget, of_prompt=True)
    found = {
        "best anew for each row": one.relative(best),
        "static oracle, one cut": one.relative(one_shot(one, static)),
        "heavy + recent, one cut": one.relative(one_shot(one, heavy(*LADDER, budget))),
        "newest, one cut": one.relative(one_shot(one, np.arange(one.prompt - budget, one.prompt))),
    }
    means = {name: values.mean() for name, values in found.items()}
    base = means["static oracle, one cut"]
    figure, axes = panels(height=1.7)
    for place, (value, colour) in enumerate(zip(means.values(), (GREY, GREY, BLUE, RED), strict=True)):
        axes.barh(place, value, color=colour, hatch="//" if colour == GREY else "", edgecolor="white")
        regret = f"   regret {value / base:.2f}" if place > 1 else "   oracle"
        note(axes, value, place, f"{value:.3g}{regret}", va="center")
    axes.set_yticks(range(len(means)), list(means))
    axes.set(xlabel="mean relative error [1]", xlim=(0, 1.45 * max(means.values())))
    axes.invert_yaxis()
    return figure, means


def distance_split():
    """Shows that a long exact tail hides the error of the cut."""
    one = head(*SPLIT)
    chosen = heavy(*SPLIT, BUDGET)
    whole = one.relative(one_shot(one, chosen))
    prefix = np.arange(len(one.v)) < one.prompt
    exact, _ = one.outputs(causal(one) & prefix)
    z, _ = one.outputs(one_shot(one, chosen) & prefix)
    alone = norms(z - exact) / norms(exact)
    figure, axes = panels(height=2.0)
    found = {}
    for name, values, colour, mark in (("all tokens", whole, BLUE, "o"), ("prefix only", alone, RED, "s")):
        quarters = [part.mean() for part in np.array_split(values, 4)]
        axes.plot(range(1, 5), quarters, mark + "-", color=colour, label=f"{name}, mean {values.mean():.3g}")
        found |= {f"{name} {number}": value for number, value in enumerate(quarters, 1)}
    axes.set_xticks(range(1, 5))
    axes.set(xlabel="quarter of the decode rows", ylabel="mean relative error [1]", ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, found
