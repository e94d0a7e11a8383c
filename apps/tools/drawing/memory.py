"""Pictures of the memory of a cache. Sizes follow from the rules of the ledger, at the sample's shapes."""

import numpy as np

from .canvas import BLUE, GREEN, GREY, ORANGE, RED, panels
from .sample import head

BUDGET, THRESHOLD, STRIDE = 128, 24, 4
WIDTH_BYTES = 2  # a stored number is float16
FOUR_BITS = (64 * 4 + 2 * 16) / (
    64 * 16
)  # codes, offset and step of a group of 64, divided by its size in float16
SCORE_BYTES, WEIGHT_BYTES, INDEX_BYTES = 8, 4, 4


def saw_tooth(rows):
    """Sizes of a cache whose buffer fills to THRESHOLD tokens and then keeps every STRIDE-th of them."""
    sizes, size, fresh = [], BUDGET, 0
    for _ in rows:
        size, fresh = size + 1, fresh + 1
        if fresh == THRESHOLD:
            size, fresh = BUDGET + (size - BUDGET) // STRIDE, 0
        sizes.append(size)
    return np.array(sizes)


def tokens_over_time():
    """Draws sizes over time: peak, mean and final are three numbers of one curve."""
    one = head()
    steps = np.arange(len(one.rows))
    curves = {
        "exact": one.rows + 1,
        "one cut, later tokens kept": BUDGET + steps + 1,
        "evicts in batches": saw_tooth(steps),
        "budget after every step": np.full(len(steps), BUDGET),
    }
    figure, axes = panels(height=2.0)
    found = {}
    for (name, sizes), colour, dash in zip(
        curves.items(), (GREY, ORANGE, RED, BLUE), ("-", "-.", "-", "--"), strict=True
    ):
        summary = sizes.max(), sizes.mean(), sizes[-1]
        axes.plot(
            one.rows,
            sizes,
            color=colour,
            linestyle=dash,
            label=f"{name}\n{summary[0]} / {summary[1]:.0f} / {summary[2]}",
        )
        found[name] = {"peak": int(summary[0]), "mean": float(summary[1]), "final": int(summary[2])}
    axes.set(xlabel="token", ylabel="resident tokens", ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="peak / mean / final", title_fontsize=7)
    return figure, found


def bytes_by_column():
    """Draws caches with equal numbers of tokens and different bytes."""
    one = head()
    width = one.k.shape[1] + one.v.shape[1]
    plain = BUDGET * width * WIDTH_BYTES
    parts = {
        "window": (plain, 0, 0, 0),
        "with scores": (plain, 0, SCORE_BYTES * BUDGET, 0),
        "weighted sample": (plain, WEIGHT_BYTES * BUDGET, 0, INDEX_BYTES * BUDGET),
        "scores, rows of 4 bits": (plain * FOUR_BITS, 0, SCORE_BYTES * BUDGET, 0),
    }
    figure, axes = panels(height=1.8)
    names = ("keys and values", "weights", "scores (aux)", "positions (aux)")
    left = np.zeros(len(parts))
    for index, (name, colour, hatch) in enumerate(
        zip(names, (BLUE, GREEN, RED, ORANGE), ("", "//", "..", "xx"), strict=True)
    ):
        sizes = np.array([row[index] for row in parts.values()]) / 1024
        axes.barh(
            range(len(parts)), sizes, left=left, color=colour, hatch=hatch, label=name, edgecolor="white"
        )
        left += sizes
    for place, total in enumerate(left):
        axes.text(total + 0.3, place, f"{total:.1f}", va="center", fontsize=7)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set(xlabel=f"KiB of one kv head with {BUDGET} tokens", xlim=(0, 1.12 * left.max()))
    axes.invert_yaxis()
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, dict(zip(parts, left, strict=True))
