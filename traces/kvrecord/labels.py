"""Labels of a gradient: next tokens drawn from the model's prediction.

Each draw uses a hash of (seed, prompt, sample, row) as its random number. So a label does not depend on how
many others are drawn, on where the scored rows begin, or on whether a run was interrupted.
"""

import hashlib

import numpy as np
import torch

# SplitMix64 (Steele, Lea, Flood 2014): its step, and the two factors and shifts of its finaliser.
STEP = np.uint64(0x9E3779B97F4A7C15)
FINALISER = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


def uniforms(seed, prompt_id, n_samples, rows):
    """[n_samples, len(rows)] float64 in [0, 1): sample s of row t does not depend on what else is drawn."""
    digest = hashlib.sha256(f"{seed}\0{prompt_id}".encode()).digest()
    key = np.uint64(int.from_bytes(digest[:8], "little"))
    samples = np.arange(n_samples, dtype=np.uint64)[:, None] << np.uint64(32)
    mixed = key + STEP * ((samples | np.asarray(rows, dtype=np.uint64)[None, :]) + np.uint64(1))
    for shift, factor in FINALISER:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)) * 2.0**-53


def draw(log_probs, numbers):
    """Labels [S, n] int64 of predictions log_probs [n, vocabulary] and numbers [S, n] in [0, 1): the first
    token at which the summed probability exceeds the number."""
    summed = log_probs.double().exp().cumsum(-1)
    # The sum may be slightly below 1 from rounding, so numbers are scaled to the sum.
    reached = torch.from_numpy(numbers.T.copy()).to(summed) * summed[:, -1:]
    return torch.searchsorted(summed, reached, right=True).clamp_(max=summed.shape[1] - 1).T
