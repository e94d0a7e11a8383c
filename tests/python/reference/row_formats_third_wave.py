"""Row formats of the third wave: blocks of ik_llama.cpp, OSCAR, formats by age.

Functions of rows take [m, d] and return them as read back. The replay at the end is that of `exact`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .common import softmax
from .row_codes import GGML_BLOCK, finite, float16, float32, in_blocks, ratio

# --- ik_llama.cpp -----------------------------------------------------------------------------------------

IQ4_NL = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float64
)


def signed_largest(block: np.ndarray) -> np.ndarray:
    """The number of largest magnitude of each row with its sign, the first of equals: [m, 1]."""
    return np.take_along_axis(block, np.abs(block).argmax(axis=1)[:, None], axis=1)


def fitted_scale(x: np.ndarray, levels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The scale of the levels with the least weighted square error: [m, 1]."""
    above = (weight * x * levels).sum(axis=1, keepdims=True)
    return ratio(above, (weight * levels**2).sum(axis=1, keepdims=True))


def iq4_nl(x: np.ndarray) -> np.ndarray:
    """4 bits: the nearest of 16 uneven levels of each number over largest / -127; a tie takes the higher."""

    def of_block(block):
        y = ratio(block, signed_largest(block) / -127)
        v = IQ4_NL[np.searchsorted((IQ4_NL[:-1] + IQ4_NL[1:]) / 2, y, side="right")]
        return v * float16(fitted_scale(block, v, block**2))

    return in_blocks(finite(x), GGML_BLOCK, of_block)


def q6_0(x: np.ndarray, scale: str = "fit") -> np.ndarray:
    """6 bits: even levels -32 .. 31 of largest / -32, or of the scale with the least weighted error."""

    def of_block(block):
        d = signed_largest(block) / -32
        y = ratio(block, d)
        c = np.minimum(63, np.trunc(y + 32.5)) - 32
        s = fitted_scale(block, c, y**2) if scale == "fit" else d
        return np.where(d == 0, 0.0, c * float16(s))

    return in_blocks(finite(x), GGML_BLOCK, of_block)


# --- OSCAR ------------------------------------------------------------------------------------------------


def sylvester(d: int) -> np.ndarray:
    """Orthonormal Hadamard matrix [d, d]."""
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(d)


def bit_reversal(d: int) -> np.ndarray:
    """br [d]: every index with its log2(d) bits in the opposite order."""
    bits = d.bit_length() - 1
    return np.array([int(format(i, f"0{bits}b")[::-1], 2) if bits else 0 for i in range(d)])


def rotation_of(c: np.ndarray) -> tuple[np.ndarray, float]:
    """R of a second moment [d, d], and the smallest gap between eigenvalues over the largest eigenvalue."""
    values, vectors = np.linalg.eigh(c)
    u = vectors[:, ::-1]
    u = u * np.where(np.take_along_axis(u, np.abs(u).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)
    r = np.empty_like(c)
    r[:, bit_reversal(len(c))] = u @ sylvester(len(c))
    return r, float(np.diff(values).min() / values[-1])


def oscar_rotations(head) -> tuple[np.ndarray, np.ndarray, float]:
    """Rotations of keys and of values from the prompt, and the smaller of their eigenvalue gaps."""
    k, v, q = head.k[: head.P], head.v[: head.P], head.q[:, : head.P].reshape(-1, head.d)
    c_q = q.T @ q / len(q)
    w = np.einsum("ia,ab,ib->i", k, c_q, k)
    w = w / w.mean()
    of_keys, key_gap = rotation_of(c_q)
    of_values, value_gap = rotation_of((v * w[:, None]).T @ v / head.P)
    return of_keys, of_values, min(key_gap, value_gap)


def oscar_codes(y: np.ndarray, clip: float, group: int, scales: str) -> np.ndarray:
    """Rotated rows, clipped and coded with 2 bits."""
    d = y.shape[1]
    if clip > 0:
        limit = np.sort(np.abs(y), axis=1)[:, min(int(np.floor(clip * d)), d - 1)][:, None]
        y = np.clip(y, -limit, limit)
    stored = float16 if scales == "f16" else float32

    def of_group(part):
        low, high = part.min(axis=1, keepdims=True), part.max(axis=1, keepdims=True)
        s = np.maximum(high - low, 1e-8) / 3
        z = -low / s
        return (np.clip(np.trunc(part / s + z + 0.5), 0, 3) - stored(z)) * stored(s)

    return in_blocks(y, min(group, d), of_group)


def oscar(x: np.ndarray, r: np.ndarray, clip: float, group: int = 128, scales: str = "f16") -> np.ndarray:
    """2-bit integers of the rotated rows."""
    return oscar_codes(finite(x) @ r, clip, group, scales) @ r.T


def oscar_bytes(d: int, group: int = 128, scales: str = "f16") -> int:
    return -(-d // 4) + (4 if scales == "f16" else 8) * -(-d // min(group, d))


def oscar_reads(head, clip_key=0.96, clip_value=0.92, group=128, scales="f16"):
    """Keys and values of a head as read back, and the bytes of a row."""
    of_keys, of_values, _ = oscar_rotations(head)
    keys = oscar(head.k, of_keys, clip_key, group, scales)
    values = oscar(head.v, of_values, clip_value, group, scales)
    return keys, values, oscar_bytes(head.d, group, scales) + oscar_bytes(head.v.shape[1], group, scales)


# --- What the rows of an exact cache read -----------------------------------------------------------------

WIDTH = 4  # bytes per number of the trace


def attend(head, rows_of: Callable) -> np.ndarray:
    """Outputs [G, n - P, dv] of the rows from P on. rows_of(t): keys and values as row t reads them."""
    out = []
    for t in range(head.P, head.n):
        k, v = rows_of(t)
        out.append(softmax(head.scale * head.q[:, t] @ k.T) @ v)
    return np.stack(out, axis=1)


@dataclass
class Cache:
    """An exact cache: outputs, bytes after the last row, and how many rows were coded again."""

    out: np.ndarray
    final_bytes: float
    recoded: int = 0


def protected(head, keys, values, row_bytes, sinks=0, recent=1, own_row="exact") -> Cache:
    """Rows that are coded once. sinks, recent: R3."""
    j = np.arange(head.n)

    def rows_of(t):
        newest = t if own_row == "exact" else t + 1
        coded = (j[: t + 1] >= sinks) & (j[: t + 1] < newest - (recent - 1))
        pick = lambda read, exact: np.where(coded[:, None], read[: t + 1], exact[: t + 1])  # noqa: E731
        return pick(keys, head.k), pick(values, head.v)

    coded = int(((j >= sinks) & (j < head.n - (recent - 1))).sum())
    exact = WIDTH * (head.d + head.v.shape[1])
    return Cache(attend(head, rows_of), coded * row_bytes + (head.n - coded) * exact)


def by_age(head, limits: list, entries: list, sinks=0, own_row="exact") -> Cache:
    """Rows whose format changes with their age.

    limits: `newer_than` of all entries but the last. entries: for each the change of a key row, that of a
    value row, and the bytes of a row; a change takes rows [m, d].
    """
    k, v = head.k.copy(), head.v.copy()
    entry = np.full(head.n, -1)
    recoded = 0

    def settle(held, now):
        """Brings tokens 0 .. held - 1 to their entries at row `now`."""
        nonlocal recoded
        for j in range(sinks, held):
            e = int(np.searchsorted(limits, now - j, side="right"))
            if e == entry[j]:
                continue
            recoded += entry[j] >= 0
            of_key, of_value, _ = entries[e]
            k[j], v[j], entry[j] = of_key(k[j : j + 1])[0], of_value(v[j : j + 1])[0], e

    def rows_of(t):
        if own_row == "coded":
            settle(t + 1, t)
        read = k[: t + 1].copy(), v[: t + 1].copy()
        settle(t + 1, t + 1)
        return read

    settle(head.P, head.P)
    out = attend(head, rows_of)
    exact = WIDTH * (head.d + head.v.shape[1])
    return Cache(out, sum(entries[e][2] if e >= 0 else exact for e in entry), recoded)
