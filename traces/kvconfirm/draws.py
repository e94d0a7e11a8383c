"""Draws of an instance: the same run under another machine's rounding.

Coding a stored row decides: a number near the middle between two codes falls to one or the other by its last
bit, the next layer sees a whole step of difference, and decides otherwise at many more places. So the loss of
coded rows is one draw from a distribution; the order of a machine's sums says which. Masks and weights are
continuous: their losses repeat to the rounding itself.
"""

import hashlib
from statistics import fmean, stdev

import numpy as np
import torch

from .coded_rows import AS_THEY_ARE, format_of, names_in

# Of these a draw's standard deviation is told.
SPREAD = ("loss_increase", "kl_mean")
CODES_ITSELF = ("qjl",)  # methods whose rows are codes, whatever their row format


def codes_rows(instance):
    """Does an instance round what it stores?"""
    coded = names_in(format_of(instance.parameters())) - set(AS_THEY_ARE)
    return instance.method in CODES_ITSELF or bool(coded)


class Disturbance:
    """What another order of sums may do: x (1 + u eps), u uniform in [-1, 1), eps the spacing of the numbers
    of x behind 1 (2^-23 in float32): a number stays, or becomes one of its neighbours.

    It depends on (seed, draw, prompt, layer, name of x, token), on nothing that ran before.
    """

    def __init__(self, seed, draw, prompt):
        self.place = f"{seed}/{draw}/{prompt}"

    def __call__(self, layer, name, x):
        """x [H, T, D], disturbed; row t is that of token t, counted from the oldest that x holds."""
        heads, tokens, width = x.shape
        place = hashlib.sha256(f"{self.place}/{layer}/{name}".encode()).digest()
        numbers = np.random.Generator(np.random.Philox(key=int.from_bytes(place[:16], "little")))
        # Token by token, so that the prompt's rows are the same with and without those behind it.
        u = 2 * numbers.random((tokens, heads, width), dtype=np.float32) - 1
        u = torch.from_numpy(u).to(x.device).transpose(0, 1)
        exact = x.float()
        return (exact + exact * (torch.finfo(x.dtype).eps * u)).to(x.dtype)


def over_draws(draws):
    """{name: mean} of the draws' {name: number}; that of a single draw as it is."""
    if len(draws) == 1:
        return dict(draws[0])
    return {name: fmean(one[name] for one in draws) for name in draws[0]}


def spread(draws):
    """Columns `n_draws` and the standard deviation of one draw of each of SPREAD (n - 1 in the denominator),
    None for a single draw."""
    found = {"n_draws": len(draws)}
    for name in SPREAD:
        found[f"{name}_sd"] = stdev([one[name] for one in draws]) if len(draws) > 1 else None
    return found
