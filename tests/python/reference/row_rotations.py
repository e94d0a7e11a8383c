"""Rotation matrices of rows, the uniforms they are drawn from, and codebooks of known densities."""

from functools import cache

import numpy as np
from scipy.special import betainc, betaincinv, gammaln, ndtr, ndtri

from .common import uniform

STRUCTURES = {"signs": 14, "rotation": 15, "sketch": 16}


class Draws:
    """Arrays of uniforms shared by all layers and heads: named arrays, or drawn from the seed."""

    def __init__(self, seed: int = 0, uniforms: dict | None = None):
        self.seed, self.given = seed, uniforms or {}

    def uniforms(self, name: str, count: int) -> np.ndarray:
        """The first `count` numbers of the array: the counter holds only the index and the structure."""
        if name in self.given:
            if len(self.given[name]) < count:
                raise ValueError(f"{name} holds {len(self.given[name])} numbers, {count} are needed")
            return np.asarray(self.given[name][:count], dtype=np.float64)
        return uniform(self.seed, 0, 0, 0, STRUCTURES[name], 0, slot=np.arange(count))

    def gaussians(self, name: str, count: int) -> np.ndarray:
        """Box-Muller on consecutive pairs: the cosine first, then the sine."""
        u = self.uniforms(name, count + count % 2).reshape(-1, 2)
        radius = np.sqrt(-2 * np.log(np.maximum(u[:, 0], 2.0**-53)))
        angle = 2 * np.pi * u[:, 1]
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:count]

    def signs(self, d: int) -> np.ndarray:
        """[d] of -1 (U < 1/2) and 1."""
        return np.where(self.uniforms("signs", d) < 0.5, -1.0, 1.0)

    def gaussian(self, name: str, d: int) -> np.ndarray:
        """[d, d] Gaussian, row-major."""
        return self.gaussians(name, d * d).reshape(d, d)

    def matrix(self, kind: str, d: int, block: int | None = None) -> np.ndarray:
        """M of y = x M [d, d]: hadamard, hadamard_signed or haar."""
        if kind == "haar":
            q, r = np.linalg.qr(self.gaussian("rotation", d))
            return q * np.where(np.diag(r) < 0, -1.0, 1.0)
        block = block or power_of_two(d)
        if block < 2:
            raise ValueError("a Hadamard matrix rotates blocks of a power of two numbers, 2 at least")
        h = hadamard(d, block)
        return self.signs(d)[:, None] * h if kind == "hadamard_signed" else h


def power_of_two(d: int) -> int:
    """The largest power of two that divides d."""
    return d & -d


def hadamard(d: int, block: int) -> np.ndarray:
    """Walsh-Hadamard matrices of size `block` in Sylvester order on the diagonal, orthonormal."""
    h = np.ones((1, 1))
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    return np.kron(np.eye(d // block), h / np.sqrt(block))


# --- Codebooks --------------------------------------------------------------------------------------------

SWEEPS, STEPS, CLOSE = 200, 60, 1e-15


def lloyd_max(cells, density, start: np.ndarray) -> np.ndarray:
    """The levels [L] that are the means of their cells, ascending.

    cells(midpoints [L - 1]) returns mass and mean [L] of the cells between them. Lloyd's sweeps converge
    slowly; close to the solution Newton's method takes over, with the derivatives of the means with respect
    to the two ends of a cell.
    """
    levels = np.asarray(start, dtype=np.float64)
    for _ in range(SWEEPS):
        levels = cells((levels[:-1] + levels[1:]) / 2)[1]
    for _ in range(STEPS):
        middle = (levels[:-1] + levels[1:]) / 2
        mass, mean = cells(middle)
        right = density(middle) * (middle - mean[:-1]) / mass[:-1] / 2
        left = density(middle) * (mean[1:] - middle) / mass[1:] / 2
        jacobian = np.eye(len(levels)) - np.diag(np.append(right, 0.0)) - np.diag(np.append(0.0, left))
        jacobian -= np.diag(right, 1) + np.diag(left, -1)
        change = np.linalg.solve(jacobian, mean - levels)
        levels = levels + change
        if np.abs(change).max() <= CLOSE * np.abs(levels).max():
            break
    return levels


def between(ends: np.ndarray, cumulated: np.ndarray, moment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mass and mean of the cells, from the two antiderivatives at their ends."""
    mass = np.diff(cumulated)
    return mass, np.diff(moment) / mass


@cache
def gauss_levels(bits: int) -> np.ndarray:
    """Lloyd-Max levels of N(0, 1): [2^bits]."""

    def density(x):
        return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    def cells(middle):
        ends = np.concatenate([[-np.inf], middle, [np.inf]])
        return between(ends, ndtr(ends), -density(ends))

    return symmetric(lloyd_max(cells, density, ndtri((np.arange(2**bits) + 0.5) / 2**bits)))


@cache
def beta_levels(bits: int, d: int) -> np.ndarray:
    """Lloyd-Max levels of a coordinate of a random unit vector: density (1 - x^2)^((d - 3)/2) on [-1, 1]."""
    a = (d - 1) / 2
    log_norm = np.log(np.pi) / 2 + gammaln(a) - gammaln(a + 0.5)

    def density(x):
        return np.exp((a - 1) * np.log1p(-(x**2)) - log_norm)

    def cells(middle):
        ends = np.concatenate([[-1.0], middle, [1.0]])
        moment = -((1 - ends**2) ** a) / (2 * a) * np.exp(-log_norm)
        return between(ends, betainc(a, a, (1 + ends) / 2), moment)

    return symmetric(
        lloyd_max(cells, density, 2 * betaincinv(a, a, (np.arange(2**bits) + 0.5) / 2**bits) - 1)
    )


def symmetric(levels: np.ndarray) -> np.ndarray:
    """Makes levels symmetric by averaging the rounding errors of both sides."""
    return (levels - levels[::-1]) / 2


NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


@cache
def angle_levels(bits: int, level: int) -> np.ndarray:
    """Levels of PolarQuant's angles of level > 1: density sin(2x)^(2^(level-1) - 1) on [0, pi/2]."""
    power = 2 ** (level - 1) - 1

    def density(x):
        return np.sin(2 * x) ** power

    def cells(middle):
        ends = np.concatenate([[0.0], middle, [np.pi / 2]])
        half, centre = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
        x = centre[:, None] + half[:, None] * NODES
        mass = half * (density(x) @ WEIGHTS)
        return mass, half * ((x * density(x)) @ WEIGHTS) / mass

    start = (np.arange(2**bits) + 0.5) * np.pi / 2 / 2**bits
    return lloyd_max(cells, density, start)


def nearest(x: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The level of each number; its code is the number of midpoints that are not above it."""
    return levels[np.searchsorted((levels[:-1] + levels[1:]) / 2, x, side="right")]
