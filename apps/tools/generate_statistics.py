"""Writes the tables of docs/statistics.md from a simulation of methods that are equal by construction.

usage: apps/tools/generate_statistics.py [--check]
tests/python/equal_methods.py is the simulation. --check writes nothing and exits 1 if the page is stale.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps/tools"), str(ROOT / "tests/python"), str(ROOT / "analysis")]

from equal_methods import (  # noqa: E402
    BLOCKS,
    DEVIATIONS,
    FAMILIES,
    FAMILY_LAYOUTS,
    LAYOUTS,
    NOISES,
    RULES,
    best_called_worse_share,
    power,
    significant_pair_share,
    significant_shares,
)
from markers import filled  # noqa: E402

PAGE = ROOT / "docs/statistics.md"


def coverage():
    rows = []
    for noise in NOISES:
        for layers, heads in LAYOUTS:
            shares = significant_shares(noise, layers, heads)
            rows.append([noise, f"{layers * heads} = {layers} × {heads}", *map(percent, shares.values())])
    return table(["noise", "heads = layers × heads of each", *RULES], rows)


def power_by_layers():
    rows = [[str(blocks), *(percent(power(blocks, d)) for d in DEVIATIONS)] for blocks in BLOCKS]
    return table(["layers", *(f"{d:g} s" for d in DEVIATIONS)], rows)


def families():
    rows = [
        [str(m), *(percent(significant_pair_share("normal", *layout, m)) for layout in FAMILY_LAYOUTS)]
        for m in FAMILIES
    ]
    return table(["equal methods", *(f"{layers} layers × {heads}" for layers, heads in FAMILY_LAYOUTS)], rows)


def best_of_equal():
    rows = [
        [str(m), *(percent(best_called_worse_share("normal", *layout, m)) for layout in FAMILY_LAYOUTS)]
        for m in FAMILIES
    ]
    return table(["equal methods", *(f"{layers} layers × {heads}" for layers, heads in FAMILY_LAYOUTS)], rows)


TABLES = {"coverage": coverage, "power": power_by_layers, "holm": families, "best": best_of_equal}


def percent(share):
    return "–" if np.isnan(share) else f"{100 * share:.1f} %"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text):
    """The page's text with newly computed tables; exits with a message if a marker is missing."""
    for name, made in (
        ("coverage", coverage),
        ("power", power_by_layers),
        ("holm", families),
        ("best", best_of_equal),
    ):
        try:
            text = filled(text, "generate_statistics.py", name, f"\n{made()}\n\n")
        except LookupError as lack:
            sys.exit(f"{PAGE}: {lack}")
    return text


def main(words):
    text = PAGE.read_text()
    made = page(text)
    if "--check" not in words:
        PAGE.write_text(made)
    elif made != text:
        print(f"{PAGE.name} is stale: run apps/tools/generate_statistics.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
