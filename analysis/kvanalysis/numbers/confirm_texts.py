"""Which texts are shown where there are too many for all of them."""

import numpy as np

MOST_TEXTS = 6  # with a panel or a column each


def shown_texts(prompts, rho):
    """Indices into `prompts`, ascending; of more than MOST_TEXTS some of them, evenly spaced from the one
    with the lowest correlation `rho` [prompts] to that with the highest, so that no choice flatters."""
    if len(prompts) <= MOST_TEXTS:
        return list(range(len(prompts)))
    known = np.flatnonzero(np.isfinite(rho))
    order = known[np.argsort(rho[known], kind="stable")]
    places = np.linspace(0, len(order) - 1, min(MOST_TEXTS, len(order))).round().astype(int)
    return sorted(int(index) for index in order[np.unique(places)])


def shown_words(shown, total):
    """The sentence of a note; "" where all are shown."""
    if len(shown) == total:
        return ""
    return f"{len(shown)} of {total} texts, evenly from the worst predicted one to the best."
