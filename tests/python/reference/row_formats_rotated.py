"""Row formats with a built-in rotation: TurboQuant's two quantisers and PolarQuant."""

import numpy as np

from .row_codes import finite, float16
from .row_rotations import Draws, angle_levels, beta_levels, gauss_levels, nearest


def unit_levels(bits: int, codebook: str, d: int) -> tuple[np.ndarray, float]:
    """Levels, and the factor of a unit vector's coordinates before they are compared with the levels."""
    return (gauss_levels(bits), np.sqrt(d)) if codebook == "gauss" else (beta_levels(bits, d), 1.0)


def directions(x: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Norms [rows, 1] and rotated unit vectors [rows, d]."""
    norm = np.sqrt((finite(x) ** 2).sum(axis=1, keepdims=True))
    return norm, x / (norm + 1e-8) @ m


def code_directions(y: np.ndarray, bits: int, codebook: str) -> np.ndarray:
    """Rounds every coordinate of y [rows, d] to its nearest level."""
    levels, factor = unit_levels(bits, codebook, y.shape[1])
    return nearest(y * factor, levels) / factor


def tq_mse(
    x: np.ndarray,
    draws: Draws,
    bits: int = 3,
    rotation: str = "haar",
    codebook: str = "beta",
    norm_correction: bool = False,
) -> np.ndarray:
    """TurboQuant, Algorithm 1: norm in float16 times Lloyd-Max levels of the rotated direction."""
    m = draws.matrix(rotation, x.shape[1])
    norm, y = directions(x, m)
    c = code_directions(y, bits, codebook)
    if norm_correction:
        c = c / np.sqrt((c**2).sum(axis=1, keepdims=True) + 1e-16)
    return float16(norm) * (c @ m.T)


def tq_prod(
    x: np.ndarray, draws: Draws, bits: int = 3, rotation: str = "haar", codebook: str = "beta"
) -> np.ndarray:
    """TurboQuant, Algorithm 2: one bit less, and the signs of a sketch of the error."""
    d = x.shape[1]
    m, sketch = draws.matrix(rotation, d), draws.gaussian("sketch", d)
    norm, y = directions(x, m)
    c = code_directions(y, bits - 1, codebook)
    missed = y - c
    gamma = float16(np.sqrt((missed**2).sum(axis=1, keepdims=True)))
    signs = np.where(missed @ sketch < 0, -1.0, 1.0)
    return float16(norm) * ((c + np.sqrt(np.pi / 2) / d * gamma * (signs @ sketch.T)) @ m.T)


POLAR_LEVELS = (4, 2, 2, 2)


def polar(x: np.ndarray, draws: Draws, levels=POLAR_LEVELS, rotation: str = "haar") -> np.ndarray:
    """PolarQuant: neighbours become (radius, angle), recursively; the last radii are float16."""
    m = draws.matrix(rotation, x.shape[1])
    radii, angles = finite(x) @ m, []
    for level, bits in enumerate(levels, start=1):
        a, b = radii[:, 0::2], radii[:, 1::2]
        angle = np.arctan2(b, a)
        if level == 1:
            width = 2 * np.pi / 2**bits
            code = np.minimum(np.floor(angle % (2 * np.pi) / width), 2**bits - 1)
            angles.append((code + 0.5) * width)
        else:
            angles.append(nearest(angle, angle_levels(bits, level)))
        radii = np.sqrt(a**2 + b**2)
    back = float16(radii)
    for angle in reversed(angles):
        back = np.stack([back * np.cos(angle), back * np.sin(angle)], axis=2).reshape(len(x), -1)
    return back @ m.T


def polar_bits(d: int, levels=POLAR_LEVELS) -> tuple[int, int]:
    """Bits of a row's angles, and the number of its stored radii."""
    return sum((d >> level) * bits for level, bits in enumerate(levels, start=1)), d >> len(levels)
