"""Reads lists of tokens from files of kept sets."""

from itertools import pairwise

import h5py
import numpy as np


def ragged(group: h5py.Group, name: str) -> list[np.ndarray]:
    """The lists in `<name>_flat`; each extends from one entry of `<name>_off` to the next."""
    flat, off = group[name + "_flat"][:], group[name + "_off"][:]
    return [flat[a:b] for a, b in pairwise(off)]
