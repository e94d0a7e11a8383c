"""Rotates keys by a number of positions."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding of a layer: `inv_freq` float64 tensor [pairs], `layout` "half_split" or
    "interleaved"."""

    inv_freq: torch.Tensor
    layout: str


def turn(keys, by, rotary):
    """keys [N, D], each rotated forward by its number of positions in `by` [N]."""
    pairs = len(rotary.inv_freq)
    angles = by.double()[:, None] * rotary.inv_freq.to(by.device)
    cos, sin = angles.cos().to(keys.dtype), angles.sin().to(keys.dtype)
    turned = keys.clone()
    if rotary.layout == "half_split":
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    else:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    turned[:, first] = keys[:, first] * cos - keys[:, second] * sin
    turned[:, second] = keys[:, second] * cos + keys[:, first] * sin
    return turned
