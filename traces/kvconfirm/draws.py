"""Draws of an instance: repeated runs with different rounding.

Quantisation is discontinuous: the last bit of a number between two codes decides its code, the next layer
sees a whole step of difference, and many more of its codes change. So the loss with quantised rows is one
draw from a distribution, selected by the order of a machine's sums. Masks and weights are continuous: their
losses are reproduced up to rounding.
"""

import hashlib
from statistics import fmean, stdev

import numpy as np
import torch

from .coded_rows import UNQUANTISED_FORMATS, format_of, names_in

# Columns whose standard deviation over draws is written.
SPREAD = ("loss_increase", "kl_mean")
QUANTISING_METHODS = ("qjl",)  # methods that quantise rows in every row format


def codes_rows(instance):
    """Does the instance quantise the rows that it stores?"""
    coded = names_in(format_of(instance.parameters())) - set(UNQUANTISED_FORMATS)
    return instance.method in QUANTISING_METHODS or bool(coded)


class Disturbance:
    """Simulates another order of sums: x (1 + u eps), with u uniform in [-1, 1) and eps the machine epsilon
    of x (2^-23 in float32). A number stays or becomes a neighbouring one.

    The result depends only on (seed, draw, prompt, layer, name of x, token), not on earlier calls.
    """

    def __init__(self, seed, draw, prompt):
        self.place = f"{seed}/{draw}/{prompt}"

    def __call__(self, layer, name, x):
        """x [H, T, D], disturbed. Row t counts from the oldest token that x holds."""
        heads, tokens, width = x.shape
        place = hashlib.sha256(f"{self.place}/{layer}/{name}".encode()).digest()
        numbers = np.random.Generator(np.random.Philox(key=int.from_bytes(place[:16], "little")))
        # Drawn token by token, so the prompt's rows do not depend on how many rows follow.
        u = 2 * numbers.random((tokens, heads, width), dtype=np.float32) - 1
        u = torch.from_numpy(u).to(x.device).transpose(0, 1)
        exact = x.float()
        return (exact + exact * (torch.finfo(x.dtype).eps * u)).to(x.dtype)


def mean_over_draws(draws):
    """{name: mean} over the draws' {name: number}, None where the draws have None; a single draw is returned
    unchanged."""
    if len(draws) == 1:
        return dict(draws[0])
    return {
        name: None if value is None else fmean(one[name] for one in draws) for name, value in draws[0].items()
    }


def spread(draws):
    """Columns `n_draws` and, for each of SPREAD, the standard deviation over draws (n - 1 in the
    denominator); None for a single draw."""
    found = {"n_draws": len(draws)}
    for name in SPREAD:
        found[f"{name}_sd"] = stdev([one[name] for one in draws]) if len(draws) > 1 else None
    return found
