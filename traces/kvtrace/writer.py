"""One trace file, schema 1: written as `<file>.part`, synced to disk, then renamed.

Every dataset of numbers has an attribute `sha256`: the hex digest of its raw stored bytes in C order (before
any filter), little endian, bfloat16 as its two bytes.

`trace_id` is the hex sha256 of this UTF-8 text: the `sha256` digests of all these datasets, sorted and
joined without separator, followed by the canonical JSON of the model's metadata. That JSON is the
object {name: value} of the root attributes listed in MODEL_ATTRIBUTES that are present, integers as JSON
integers and everything else as JSON strings (`config_json` and `rope_json` stay strings), keys sorted by
code point, separators "," and ":", non-ASCII characters written as themselves.
"""

import hashlib
import json
import os
from pathlib import Path

import h5py
import numpy as np
from h5py import h5d, h5p, h5s
from kvbase.errors import OutputError
from kvbase.files import reason

from .disk_file import DiskFile
from .dtypes import file_type

SCHEMA = 1
CHUNK_TOKENS = 1024  # largest chunk, in tokens
MODEL_ATTRIBUTES = (
    "model",
    "revision",
    "config_json",
    "n_layers",
    "n_q_heads",
    "n_kv_heads",
    "head_dim",
    "v_head_dim",
    "rope_json",
    "tokenizer",
)


def trace_id(digests, root_attributes):
    """Identity of a trace (module docstring) from its datasets' hex digests and its root attributes."""
    model = {name: root_attributes[name] for name in MODEL_ATTRIBUTES if name in root_attributes}
    canonical = json.dumps(model, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(("".join(sorted(digests)) + canonical).encode()).hexdigest()


def chunk_length(rows):
    """Rows per chunk for a total of `rows`: as few equal chunks as CHUNK_TOKENS allows. HDF5 pads the last
    chunk, by less than a row for each chunk."""
    n_chunks = -(-rows // CHUNK_TOKENS)
    return -(-rows // n_chunks)


def part_path(path):
    """Path of the unfinished file, `<path>.part`."""
    return Path(f"{path}.part")


def fsync_path(path):
    """Force a file or a directory entry to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class TraceFile:
    """An HDF5 file under construction. `publish` makes it visible; before that only `<path>.part` exists."""

    def __init__(self, path, compress=False):
        self.path = Path(path)
        self.part = part_path(path)
        self.compress = compress
        self.digests = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.disk = DiskFile(self.part)
            self.file = h5py.File(self.disk, "w", libver=("earliest", "v110"))
        except OSError as error:
            raise OutputError(f"{self.part}: cannot write: {reason(error)}") from error

    def add(self, name, stored, dtype=None):
        """Writes a whole dataset from its stored bits.

        `stored`: [heads, tokens, dim] for q, k, v, out, any shape otherwise; bfloat16 as uint16 with
        dtype="bf16". `dtype`: "f32", "f16", "bf16", or None for the array's own type. Returns the digest.
        """
        stored = np.ascontiguousarray(stored)
        stored_type = file_type(dtype or stored.dtype)
        group = self.file.require_group(str(Path(name).parent))
        properties = self._properties(stored.shape)
        space = h5s.create_simple(stored.shape)
        dataset = h5py.Dataset(
            h5d.create(group.id, Path(name).name.encode(), stored_type, space, dcpl=properties)
        )
        dataset.id.write(h5s.ALL, h5s.ALL, stored, mtype=stored_type)
        digest = hashlib.sha256(stored).hexdigest()
        dataset.attrs["sha256"] = digest
        self.digests.append(digest)
        self.check_disk()
        return digest

    def check_disk(self):
        """OutputError if a write to the disk has failed."""
        if self.disk.error is not None:
            raise OutputError(f"{self.part}: cannot write: {reason(self.disk.error)}")

    def add_texts(self, name, texts):
        """Writes a list of str as variable-length UTF-8 strings.

        Texts follow from the token ids, so they have no digest and do not count for the trace's id.
        """
        self.file.create_dataset(name, data=texts, dtype=h5py.string_dtype())

    def _properties(self, shape):
        properties = h5p.create(h5p.DATASET_CREATE)
        if 0 in shape:
            return properties
        # A chunk holds tokens of one head, so that a reader can read one head without the others.
        token_axis = max(len(shape) - 2, 0)
        ones = [1] * token_axis
        properties.set_chunk((*ones, chunk_length(shape[token_axis]), *shape[token_axis + 1 :]))
        if self.compress:
            properties.set_shuffle()
            properties.set_deflate(4)
        properties.set_fletcher32()
        return properties

    def link(self, name, file_name):
        """Make `name` an external link to the same name in `file_name` (relative to this file)."""
        self.file[name] = h5py.ExternalLink(str(file_name), name)

    def set_attributes(self, name, attributes):
        """Sets attributes of the group or dataset `name` ("/" is the root), except those that are None."""
        target = self.file.require_group(name)
        target.attrs.update({key: value for key, value in attributes.items() if value is not None})

    def publish(self, root_attributes, linked_digests=(), identity=None):
        """Writes the root attributes, `complete` last, then syncs to disk and renames. Returns the trace id.

        `identity`: the trace id, if it is not computed as in the module docstring.
        """
        identity = identity or trace_id([*self.digests, *linked_digests], root_attributes)
        self.set_attributes("/", {"kvreplay_schema": SCHEMA, **root_attributes, "trace_id": identity})
        self.file.flush()
        self.file.attrs["complete"] = 1
        self.abandon()
        self.check_disk()
        try:
            self.part.replace(self.path)
            fsync_path(self.path.parent)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot write: {reason(error)}") from error
        return identity

    def abandon(self):
        """Closes without publishing: `<path>.part` stays, `path` is not touched."""
        self.file.close()
        self.disk.close()
