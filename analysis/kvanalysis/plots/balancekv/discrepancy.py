"""The remaining imbalance of a self-balancing walk, computed from the tokens that it kept."""

import numpy as np

PROBES, PROBE_SEED = 64, 0
COIN_FROM = 1e20  # with a walk's bound of this size or more, every sign is a fair coin
LITERAL, COIN = "literal c", "coin"


def discrepancy(keys, values, kept, scale):
    """Largest ||sum_i eta_i exp(scale <k_i, q>) v_i|| / (exp(scale r^2) max ||v||) over queries q of norm r.

    `keys` [n, d], `values` [n, dv], r = max ||k||; eta is +1 for the tokens in `kept`, else -1. The divisor
    is the scale in the theorem's bound on SoftmaxBalance, whose remaining factor is sqrt(dv) ln(n dv/delta).
    The PROBES directions are seeded. No exponent is positive, so nothing overflows.
    """
    signs = np.full(len(keys), -1.0)
    signs[kept] = 1.0
    r = np.linalg.norm(keys, axis=1).max()
    directions = np.random.default_rng(PROBE_SEED).normal(size=(PROBES, keys.shape[1]))
    queries = r * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    weights = signs * np.exp(scale * (queries @ keys.T) - scale * r**2)
    return float(np.linalg.norm(weights @ values, axis=1).max() / np.linalg.norm(values, axis=1).max())


def walk_of(cell):
    """The kind of a walk's bound c: the theorem's 30 ln(n/delta), a fair coin, or another value."""
    c, n = cell["params"]["c"], float(cell["n_tokens"])
    theorem = 30 * np.log(n / (cell["params"].get("delta") or n**-2))
    if c > COIN_FROM:
        return COIN
    return LITERAL if np.isclose(c, theorem) else f"c = {c:g}"
