"""Datasets of a trace: nothing is believed that the file's size does not justify.

HDF5 fills what was never written with zeros, without a word. So chunks are counted, extents are held against
what the file holds, and virtual datasets are refused.
"""

import hashlib
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5s, h5t, h5z

from .bits import BFLOAT16, FLOAT16, FLOAT32, NumberType, Stored
from .walk import Node, fail, reading

FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
# zlib cannot pack better than 1032 to 1, so more than that was never written.
MOST_PACKED = 1032
# sign, exponent, exponent bits, mantissa, mantissa bits, then the bias of the exponent
FIELDS_OF_HALVES = {(15, 10, 5, 0, 10, 15): FLOAT16, (15, 7, 8, 0, 7, 127): BFLOAT16}
PIECE_BYTES = 4 << 20
NAMES_OF_CLASSES = {
    h5t.INTEGER: "an integer type",
    h5t.FLOAT: "a floating point type",
    h5t.STRING: "a string type",
    h5t.COMPOUND: "a compound type",
    h5t.ENUM: "an enumeration type",
}


@dataclass(frozen=True)
class Array:
    """A dataset whose extents are justified by what the file holds."""

    node: Node
    shape: tuple[int, ...]

    @property
    def dataset(self) -> h5py.Dataset:
        return self.node.item

    @property
    def file_type(self) -> h5t.TypeID:
        """Type as stored."""
        return self.dataset.id.get_type()

    @property
    def element_bytes(self) -> int:
        return self.file_type.get_size()

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.element_bytes


@dataclass(frozen=True)
class Tensor(Array):
    """An array of floats."""

    type: NumberType
    swapped: bool  # in the other byte order

    def read(self) -> Stored:
        """All numbers, in native byte order. TraceError where they cannot be read."""
        stored_type = self.type.numpy.newbyteorder() if self.swapped else self.type.numpy
        numbers = np.empty(self.shape, stored_type)
        _read(self, numbers)
        return Stored(numbers.astype(self.type.numpy) if self.swapped else numbers, self.type)

    def mapped(self) -> Stored | None:
        """The numbers as a read-only window on the file, where they lie there as they are in memory: in one
        piece, aligned, unfiltered, in native byte order. None elsewhere."""
        offset = self.dataset.id.get_offset() if self.dataset.chunks is None else None
        if offset is None or self.swapped or offset % self.type.numpy.itemsize or not self.bytes:
            return None
        with reading(self.node.where):
            window = np.memmap(self.node.file, self.type.numpy, "r", offset, self.shape)
        return Stored(window, self.type)


def describe(shape: tuple[int, ...]) -> str:
    """[9, 1024, 64]"""
    return str(list(shape))


def open_array(parent: Node, name: str) -> Array:
    """A dataset of a group. TraceError where it is missing, or holds less than it declares."""
    node = parent.at(name)
    if not node.is_dataset:
        fail(node.where, "is not a dataset")
    with reading(node.where):
        shape = node.item.shape
        if shape is None:
            fail(node.where, "is empty")
        array = Array(node, tuple(shape))
        _check_storage(array)
    return array


def open_tensor(layer: Node, name: str, source_dtype: str) -> Tensor:
    """A dataset of floats. `source_dtype` of the layer tells what uint16 numbers are."""
    array = open_array(layer, name)
    if len(array.shape) != 3:
        fail(
            array.node.where,
            f"has shape {describe(array.shape)}, it must have 3 axes: [heads, tokens, head_dim]",
        )
    with reading(array.node.where):
        number_type = _number_type(array, source_dtype)
        native = h5t.ORDER_LE if sys.byteorder == "little" else h5t.ORDER_BE
        return Tensor(array.node, array.shape, number_type, array.file_type.get_order() != native)


def read_integers(array: Array, low: int, high: int) -> np.ndarray:
    """int64 numbers, each from `low` to `high`; TraceError elsewhere."""
    numbers = np.empty(array.shape, np.int64)
    with reading(array.node.where):
        _check_every_chunk(array)
        array.dataset.id.read(h5s.ALL, h5s.ALL, numbers)
    wrong = np.flatnonzero((numbers < low) | (numbers > high))
    if wrong.size:
        at = int(wrong[0])
        fail(array.node.where, f"holds {numbers[at]} at {at}, it must be from {low} to {high}")
    return numbers


def read_float32(array: Array) -> np.ndarray:
    """Numbers of any float type as float32."""
    numbers = np.empty(array.shape, np.float32)
    with reading(array.node.where):
        _check_every_chunk(array)
        array.dataset.id.read(h5s.ALL, h5s.ALL, numbers)
    return numbers


def array_sha256(array: Array) -> str:
    """Digest of the stored bytes in C order, before any filter."""
    total = hashlib.sha256()
    for piece in _pieces(array):
        total.update(piece)
    return total.hexdigest()


def expect_integers(array: Array, length: int) -> None:
    """TraceError unless it is a list of `length` integers."""
    expect_shape(array, (length,))
    if array.file_type.get_class() != h5t.INTEGER:
        fail(array.node.where, "does not hold integers")


def expect_shape(array: Array, shape: tuple[int, ...]) -> None:
    """TraceError unless the array has this shape."""
    if array.shape != shape:
        fail(array.node.where, f"has shape {describe(array.shape)}, it must be {describe(shape)}")


def _read(array: Array, into: np.ndarray) -> None:
    """The stored bytes: the file's type is the memory's, so that nothing is converted."""
    if into.size:
        with reading(array.node.where):
            _check_every_chunk(array)
            array.dataset.id.read(h5s.ALL, h5s.ALL, into, mtype=array.file_type)


def _pieces(array: Array) -> Iterator[np.ndarray]:
    """Stored bytes, whole rows of one head at a time where there are three axes, else all of them."""
    raw = np.dtype(f"V{array.element_bytes}")
    if len(array.shape) != 3 or not math.prod(array.shape):
        whole = np.empty(array.shape, raw)
        _read(array, whole)
        yield whole
        return
    _check_every_chunk(array)
    heads, rows, width = array.shape
    step = max(1, PIECE_BYTES // (width * array.element_bytes))
    space = array.dataset.id.get_space()
    for head in range(heads):
        for first in range(0, rows, step):
            piece = np.empty((1, min(step, rows - first), width), raw)
            space.select_hyperslab((head, first, 0), piece.shape)
            with reading(array.node.where):
                array.dataset.id.read(h5s.create_simple(piece.shape), space, piece, mtype=array.file_type)
            yield piece


def _bfloat16_hint(kind: Any, size: int) -> str:
    """How to store numbers that may be bfloat16 which the file does not call so; "" for other types.

    h5py stores bfloat16 of ml_dtypes as opaque bytes.
    """
    if size != 2 or kind.get_class() not in (h5t.OPAQUE, h5t.INTEGER):
        return ""
    opaque = kind.get_class() == h5t.OPAQUE
    those, how = ("those of ml_dtypes", 'x.view("uint16")') if opaque else ("the bits of bfloat16", "uint16")
    return (
        f'; {those} are stored as {how}, with the attribute source_dtype = "bfloat16" of the layer\'s group'
    )


def _number_type(array: Array, source_dtype: str) -> NumberType:
    kind = array.file_type
    if kind.get_class() == h5t.FLOAT:
        if kind in (h5t.IEEE_F32LE, h5t.IEEE_F32BE):
            return FLOAT32
        fields = (*kind.get_fields(), kind.get_ebias())
        if array.element_bytes == 2 and kind.get_norm() == h5t.NORM_IMPLIED and fields in FIELDS_OF_HALVES:
            return FIELDS_OF_HALVES[fields]
    is_uint16 = (
        kind.get_class() == h5t.INTEGER and array.element_bytes == 2 and kind.get_sign() == h5t.SGN_NONE
    )
    said = array.node.text("source_dtype")
    if is_uint16 and (source_dtype if said is None else said) == BFLOAT16.name:
        return BFLOAT16
    family = NAMES_OF_CLASSES.get(kind.get_class(), "another type")
    return fail(
        array.node.where,
        f"holds {family} of {array.element_bytes} bytes. Store float32, float16 or bfloat16"
        + _bfloat16_hint(kind, array.element_bytes),
    )


# ---- what the file holds


def _check_storage(array: Array) -> None:
    properties = array.dataset.id.get_create_plist()
    for i in range(properties.get_nfilters()):
        code = properties.get_filter(i)[0]
        if code not in FILTERS:
            fail(
                array.node.where,
                f"filter {code} is not supported. Write it without compression, or with gzip",
            )
    layout = properties.get_layout()
    if layout == h5d.VIRTUAL:
        fail(array.node.where, "is a virtual dataset, which hides missing files. Use external links")
    if layout == h5d.CHUNKED:
        _check_chunks(array, properties)
    elif layout == h5d.CONTIGUOUS:
        _check_contiguous(array, properties)


def _check_chunks(array: Array, properties: h5py.h5p.PropDCID) -> None:
    chunk = array.dataset.chunks
    expected = math.prod(math.ceil(n / c) for n, c in zip(array.shape, chunk, strict=True))
    written = array.dataset.id.get_num_chunks()
    if written != expected:
        fail(
            array.node.where,
            f"declares {describe(array.shape)} in {expected} chunks, but {written} were written. "
            "The file is unfinished or damaged",
        )
    codes = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
    held = min(array.dataset.id.get_storage_size(), array.node.file.stat().st_size)
    if h5z.FILTER_DEFLATE in codes:
        held *= MOST_PACKED
    _check_size(array, expected * math.prod(chunk) * array.element_bytes, held)


def _check_every_chunk(array: Array) -> None:
    """TraceError where a chunk was never written, or not through all filters: HDF5 would read zeros, or what
    the filters made of them. Counting does not see a chunk that a damaged index calls by another place."""
    chunk = array.dataset.chunks
    if chunk is None:
        return
    for at in itertools.product(*(range(0, n, c) for n, c in zip(array.shape, chunk, strict=True))):
        found = array.dataset.id.get_chunk_info_by_coord(at)
        if found.byte_offset is None or found.filter_mask or not found.size:
            fail(
                array.node.where,
                f"the chunk at {','.join(map(str, at))} is missing or damaged ({found.size} bytes stored)",
            )


def _check_contiguous(array: Array, properties: h5py.h5p.PropDCID) -> None:
    if properties.get_external_count():
        fail(array.node.where, "keeps its numbers in other files, which is not supported")
    if not array.bytes:
        return
    offset = array.dataset.id.get_offset()
    if offset is None:
        fail(array.node.where, f"declares {describe(array.shape)}, but nothing was written to it")
    _check_size(array, array.bytes, array.node.file.stat().st_size - offset)


def _check_size(array: Array, needed: int, held: int) -> None:
    if needed > held:
        fail(
            array.node.where,
            f"declares {describe(array.shape)}, {needed} bytes, but the file holds only {max(held, 0)} bytes "
            "of it. It is truncated or damaged",
        )


def read_only(array: np.ndarray) -> np.ndarray:
    """Makes the array read-only and returns it."""
    array.flags.writeable = False
    return array
