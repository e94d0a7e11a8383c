"""Pictures that show how clusterable keys and values are."""

import numpy as np

from .canvas import BLUE, GREY, RED, panels
from .sample import head

CENTERS = 4
FACTOR = 0.7  # radius of online clusters, as a share of the median distance
PAIRS = 2000


def farthest_first(points, count):
    """Farthest-first traversal of points [N, D] from point 0.

    Returns (indices of the centres, largest distance after each, mean distance after each), [count] each.
    """
    nearest = np.full(len(points), np.inf)
    chosen, radii, means = [], [], []
    for _ in range(count):
        chosen.append(int(np.argmax(nearest)) if chosen else 0)
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=1))
        radii.append(nearest.max())
        means.append(nearest.mean())
    return np.array(chosen), np.array(radii), np.array(means)


def spread(points):
    """Root mean square distance to the mean."""
    return np.sqrt(((points - points.mean(0)) ** 2).sum(1).mean())


def k_center_example():
    """Three groups and one stray point in the plane, four centres by farthest-first traversal."""
    random = np.random.default_rng(3)
    groups = [random.normal(place, 0.25, (20, 2)) for place in ((0, 0), (3, 0.4), (1.4, 2.2))]
    points = np.vstack([*groups, [[4.6, 2.6]]])
    chosen, radii, means = farthest_first(points, CENTERS)
    figure, axes = panels(height=2.3)
    axes.plot(*points.T, ".", color=GREY, markersize=4, label="points")
    axes.plot(*points[chosen].T, "s", color=RED, markersize=5, label="centres, in order")
    for number, place in enumerate(points[chosen], 1):
        axes.annotate(str(number), place, (4, 4), textcoords="offset points", fontsize=7, color=RED)
        turn = np.linspace(0, 2 * np.pi, 90)
        axes.plot(
            *(place[:, None] + radii[-1] * np.array([np.cos(turn), np.sin(turn)])), color=RED, linewidth=0.7
        )
    axes.set(
        aspect="equal",
        title=f"r₁ … r₄: {' '.join(f'{r:.2f}' for r in radii)}\nmean distance at 4: {means[-1]:.2f}",
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, {f"r{number}": radius for number, radius in enumerate(radii, 1)} | {"mean": means[-1]}


def radius_and_mean_distance():
    """Radius and mean distance of real keys and values, both normalised; the two curves need not agree."""
    one = head()
    figure, axes = panels(2, 2.0)
    found = {}
    for name, points, colour, dash in (("keys", one.k, BLUE, "-"), ("values", one.v, RED, "--")):
        _, radii, means = farthest_first(points, 256)
        for panel, values, label in zip(
            axes, (radii, means), ("r_k / rms", "mean distance / rms"), strict=True
        ):
            scaled = values / spread(points)
            panel.loglog(
                range(1, 257), scaled, color=colour, linestyle=dash, label=f"{name}, at 16: {scaled[15]:.2f}"
            )
            panel.set(xlabel="centres k", ylabel=f"{label} [1]")
            panel.legend()
            found[f"{name} {label}"] = scaled[15]
    return figure, found


def online_clusters(points, radius):
    """Cluster counts [N] after every point: a point without a centre within `radius` opens a cluster."""
    centers, counts = points[:1], []
    for point in points:
        if np.linalg.norm(centers - point, axis=1).min() > radius:
            centers = np.vstack([centers, point])
        counts.append(len(centers))
    return np.array(counts)


def cluster_growth():
    """Draws m(n) and its slope on logarithmic axes."""
    one = head()
    lengths = len(one.k) // np.array([8, 4, 2, 1])
    pairs = np.random.default_rng(0).integers(0, len(one.k), (PAIRS, 2))
    figure, axes = panels(height=2.0)
    found = {}
    for name, points, colour, mark in (("keys as stored", one.k, BLUE, "o"), ("values", one.v, RED, "s")):
        radius = FACTOR * np.median(np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1))
        counts = online_clusters(points, radius)[lengths - 1]
        slope = np.polyfit(np.log(lengths), np.log(counts), 1)[0]
        axes.loglog(lengths, counts, mark + "-", color=colour, label=f"{name}: exponent {slope:.2f}")
        found[name] = slope
    axes.loglog(lengths, lengths, color=GREY, linestyle=":", label="every token its own: 1")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.set(xlabel="tokens seen, n", ylabel="clusters m(n)")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, found
