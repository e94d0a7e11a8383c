"""Storage types of q, k, v: float32, float16 and bfloat16 as raw bits.

numpy has no bfloat16, and HDF5's conversion of it is a hundred times slower than a shift. So bfloat16 arrays
are passed as uint16 bits, written with the file type as memory type (no conversion), and widened by a 16-bit
shift on reading.
"""

import numpy as np
from h5py import h5s, h5t

# {name on the command line: (name in attributes, bytes per element, numpy type of the stored bits)}
STORED = {
    "f32": ("float32", 4, np.dtype("<f4")),
    "f16": ("float16", 2, np.dtype("<f2")),
    "bf16": ("bfloat16", 2, np.dtype("<u2")),
}


def bf16_file_type():
    """The standard HDF5 bfloat16: 2 bytes, sign 15, exponent 7+8, mantissa 0+7, bias 127, little endian."""
    bf16 = h5t.IEEE_F32LE.copy()
    # The fields are set first: they must fit before the size shrinks.
    bf16.set_fields(15, 7, 8, 0, 7)
    bf16.set_size(2)
    bf16.set_ebias(127)
    return bf16


def file_type(dtype):
    """HDF5 type of a stored dtype: "f32", "f16", "bf16" or any numpy dtype."""
    if dtype == "bf16":
        return bf16_file_type()
    return h5t.py_create(STORED[dtype][2] if dtype in STORED else np.dtype(dtype))


def bf16_bits(x):
    """float32 array -> its bfloat16 bits (uint16), rounded to nearest, ties to even. NaN stays NaN."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    bits = x.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)


def bf16_widen(bits):
    """bfloat16 bits (uint16) -> float32, exactly."""
    return (np.asarray(bits, dtype=np.uint32) << 16).view(np.float32)


def widen(stored, dtype):
    """Stored array of dtype "f32", "f16" or "bf16" -> float32 values, exactly."""
    return bf16_widen(stored) if dtype == "bf16" else np.asarray(stored, dtype=np.float32)


def is_finite(stored, dtype):
    """True when a stored array holds neither NaN nor infinity."""
    if dtype == "bf16":
        return bool(((stored & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(stored).all())


def stored_dtype(dataset):
    """Storage name ("f32", "f16", "bf16") of an open h5py dataset of floats."""
    file_type_id = dataset.id.get_type()
    if file_type_id.get_size() == 4:
        return "f32"
    return "bf16" if file_type_id.get_fields() == (15, 7, 8, 0, 7) else "f16"


def read_stored(dataset):
    """Raw stored array of an open h5py dataset, bfloat16 as uint16 bits, nothing converted."""
    if dataset.dtype.kind != "f":
        return dataset[...]
    stored = np.empty(dataset.shape, dtype=STORED[stored_dtype(dataset)][2])
    dataset.id.read(h5s.ALL, h5s.ALL, stored, mtype=dataset.id.get_type())
    return stored


def read_floats(dataset):
    """Values of an open h5py dataset of floats as float32."""
    return widen(read_stored(dataset), stored_dtype(dataset))
