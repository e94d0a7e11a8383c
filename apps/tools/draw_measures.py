"""Draws the pictures of docs/measures_explained.md from the sample trace or from small exact examples.

usage: apps/tools/draw_measures.py [--check]
Writes docs/pictures/NAME.png, and the numbers in the pictures to docs/pictures/numbers.json. --check writes
nothing: it computes the numbers again and exits 1 if one differs by more than a millionth, or a picture is
missing.
"""

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps/tools"), str(ROOT / "analysis")]

from drawing import clusters, errors, memory, sets, sparsity, statistics  # noqa: E402
from drawing.canvas import save  # noqa: E402
from kvanalysis.drawing.style import styled  # noqa: E402

FOLDER = ROOT / "docs/pictures"
PICTURES = (
    errors.error_of_one_output,
    errors.variants_of_the_error,
    errors.epsilon_forms,
    errors.missed_mass_and_gap,
    errors.regret_ladder,
    errors.distance_split,
    sets.partition_error,
    sets.kept_mass,
    sets.recalls,
    sets.needle_mass,
    memory.tokens_over_time,
    memory.bytes_by_column,
    clusters.k_center_example,
    clusters.radius_and_mean_distance,
    clusters.cluster_growth,
    sparsity.sparsity,
    sparsity.accumulated_score,
    sparsity.sink_mass,
    statistics.paired_intervals,
    statistics.bound_slack,
    statistics.bound_memory,
)


def flat(numbers, name=""):
    """Flattens nested maps to {"picture/what": number}."""
    if not isinstance(numbers, dict):
        return {name: float(numbers)}
    found = {}
    for key, value in numbers.items():
        found |= flat(value, f"{name}/{key}" if name else key)
    return found


def draw(folder=None):
    """Returns the numbers of every picture; also writes the pictures to `folder`, if not None."""
    numbers = {}
    for picture in PICTURES:
        with styled():
            figure, shown = picture()
            if folder:
                save(figure, folder / f"{picture.__name__}.png")
        numbers[picture.__name__] = shown
    return flat(numbers)


def differences(found, folder=FOLDER):
    """Names of missing pictures and of numbers that differ from the folder's numbers.json."""
    kept = json.loads((folder / "numbers.json").read_text())
    absent = [f.__name__ for f in PICTURES if not (folder / f"{f.__name__}.png").is_file()]
    names = sorted(set(kept) | set(found))
    return absent + [
        n for n in names if not math.isclose(kept.get(n, math.nan), found.get(n, math.nan), rel_tol=1e-6)
    ]


def main(words):
    if "--check" in words:
        stale = differences(draw())
        print("\n".join(f"{name}: differs" for name in stale) or "up to date")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    numbers = draw(FOLDER)
    (FOLDER / "numbers.json").write_text(
        json.dumps({name: round(value, 12) for name, value in numbers.items()}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
