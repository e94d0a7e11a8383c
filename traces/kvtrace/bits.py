"""Numbers as they are stored: float32, float16, and bfloat16 as its bits (uint16).

numpy has no bfloat16, and HDF5 widens it number by number. So its bits travel as they are, and are widened by
a shift where a caller wants numbers.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import bf16_widen


@dataclass(frozen=True)
class NumberType:
    """One way to store a float. `short` is its name in the writer, `unusable_from` the bits of the first
    magnitude that no trace may hold: 2^40, since a product of two vectors of such numbers overflows single
    precision; NaN and infinity lie above it."""

    name: str
    short: str
    numpy: np.dtype
    bits: np.dtype
    magnitude: int
    unusable_from: int


FLOAT32 = NumberType("float32", "f32", np.dtype("f4"), np.dtype("u4"), 0x7FFFFFFF, 0x53800000)
FLOAT16 = NumberType("float16", "f16", np.dtype("f2"), np.dtype("u2"), 0x7FFF, 0x7C00)
BFLOAT16 = NumberType("bfloat16", "bf16", np.dtype("u2"), np.dtype("u2"), 0x7FFF, 0x5380)


@dataclass(frozen=True)
class Stored:
    """An array of stored numbers: float32, float16, or the uint16 bits of bfloat16, in native byte order."""

    array: np.ndarray
    type: NumberType

    @classmethod
    def named(cls, array: np.ndarray, name: str) -> "Stored":
        """Numbers of the type with this name."""
        return cls(array, next(kind for kind in (FLOAT32, FLOAT16, BFLOAT16) if kind.name == name))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def floats(self) -> np.ndarray:
        """float32 or float16 as stored, bfloat16 widened to float32 without rounding."""
        if self.type is not BFLOAT16:
            return self.array
        return bf16_widen(self.array)

    def first_unusable(self) -> tuple[int, ...] | None:
        """Index of the first NaN, infinity or magnitude from 2^40 on; None where there is none."""
        # One piece of the first axis at a time: masks of a long trace would be as large as it is.
        for head, piece in enumerate(self.array):
            wrong = (piece.view(self.type.bits) & self.type.magnitude) >= self.type.unusable_from
            if wrong.any():
                return (head, *map(int, np.unravel_index(np.argmax(wrong), wrong.shape)))
        return None

    def name_at(self, index: tuple[int, ...]) -> str:
        """The number at an index as a message shows it."""
        value = float(Stored(self.array[index].reshape(1), self.type).floats()[0])
        return "NaN" if np.isnan(value) else "infinity" if np.isinf(value) else f"{value:.3g}"


def stored(given: Any, where: str) -> Stored:
    """An array of numpy, torch, jax or cupy as stored numbers; copied only where it is not contiguous.

    Takes float32, float16 and bfloat16 (ml_dtypes' or torch's). `where` names it in messages. Raises
    TypeError where it is no such array.
    """
    if isinstance(given, Stored):
        return given
    library = type(given).__module__.partition(".")[0]
    if library == "torch" and str(given.dtype) == "torch.bfloat16":
        return Stored(_torch_bits(given), BFLOAT16)
    if library == "torch":
        array = given.detach().cpu().numpy()
    else:
        array = given.get() if library == "cupy" else np.asarray(given)
    if array.dtype.name == "bfloat16":
        return Stored(np.ascontiguousarray(array).view(np.uint16), BFLOAT16)
    for kind in (FLOAT32, FLOAT16):
        if array.dtype.newbyteorder("=") == kind.numpy:
            return Stored(np.ascontiguousarray(array, dtype=kind.numpy), kind)
    raise TypeError(f"{where} holds {array.dtype.name}. Give float32, float16 or bfloat16 numbers")


def _torch_bits(tensor: Any) -> np.ndarray:
    """Bits of a bfloat16 tensor, which numpy would refuse; torch is loaded where a tensor of its is given."""
    bits = tensor.detach().cpu().contiguous().view(sys.modules["torch"].int16)
    return bits.numpy().view(np.uint16)
