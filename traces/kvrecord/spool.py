"""Stores rows until their prompt is complete: in memory, or on disk, so that memory holds one layer."""

import shutil
from pathlib import Path

import numpy as np
import torch
from kvbase.errors import TraceError
from kvbase.files import reason

TORCH_OF = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
STORAGE_OF = {torch_type: name for name, torch_type in TORCH_OF.items()}


def to_stored(tensor, dtype):
    """Tensor -> contiguous numpy array as stored: "f32", "f16", or "bf16" as its bits (uint16)."""
    stored = tensor.detach().to(TORCH_OF[dtype]).contiguous().cpu()
    return stored.view(torch.uint16).numpy() if dtype == "bf16" else stored.numpy()


def spool_folder(output):
    """Folder of the spool of an output."""
    return Path(f"{Path(output)}.spool")


def clear(output):
    """Removes the spool that a killed run left."""
    shutil.rmtree(spool_folder(output), ignore_errors=True)


class Spool:
    """A folder beside the output, which `close` removes, with the rows of a batch's prompts."""

    def __init__(self, output):
        self.folder = spool_folder(output)
        clear(output)
        _make(self.folder)

    def part(self, number):
        """The empty RowSpool of a row of the batch."""
        return RowSpool(self.folder / str(number))

    def close(self):
        """Removes the folder with everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _make(folder):
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise TraceError(f"{folder}: cannot write: {reason(error)}") from error


class RowSpool:
    """One raw file per (layer, tensor) of a prompt, token-major, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder)
        self._row = {}

    def append(self, layer, name, rows, dtype):
        """Appends rows [heads, n, dim] of a tensor, stored as `dtype`. TraceError if the disk is full."""
        by_token = np.ascontiguousarray(to_stored(rows, dtype).swapaxes(0, 1))
        self._row[layer, name] = (by_token.shape[1:], by_token.dtype)
        try:
            with self._file(layer, name).open("ab") as file:
                file.write(by_token.data)
        except OSError as error:
            raise TraceError(f"{self._file(layer, name)}: cannot write: {reason(error)}") from error

    def append_cached(self, layer, name, rows, dtype, cached):
        """`append` of rows that the model's cache holds too: `cached` are all of its rows, or None."""
        self.append(layer, name, rows, dtype)

    def names(self, layer):
        """Names of the tensors with rows for this layer."""
        return [name for of, name in self._row if of == layer]

    def first_rows(self, layer, name, n):
        """The first n rows [heads, n, dim] of a tensor; its file is kept."""
        shape, dtype = self._row[layer, name]
        rows = np.fromfile(self._file(layer, name), dtype=dtype, count=n * int(np.prod(shape)))
        return np.ascontiguousarray(rows.reshape(-1, *shape).swapaxes(0, 1))

    def take(self, layer, name):
        """All rows [heads, tokens, dim] of a tensor; removes its file."""
        shape, dtype = self._row.pop((layer, name))
        file = self._file(layer, name)
        rows = np.fromfile(file, dtype=dtype).reshape(-1, *shape)
        file.unlink()
        return np.ascontiguousarray(rows.swapaxes(0, 1))

    def _file(self, layer, name):
        return self.folder / f"{layer:03d}.{name}"


class MemorySpool:
    """Rows of a batch's prompts in memory, as tensors on the model's device."""

    def part(self, number):
        """The empty RowsInMemory of a row of the batch."""
        return RowsInMemory()

    def close(self):
        """Nothing is left behind."""


class RowsInMemory:
    """Rows of a prompt with the interface of RowSpool. Tensors are kept as they are: what the model's cache
    holds is a view of it, and nothing is copied."""

    def __init__(self):
        self._rows = {}

    def append(self, layer, name, rows, dtype):
        """Appends rows [heads, n, dim] of a tensor."""
        self._rows.setdefault((layer, name), []).append(rows.detach().to(TORCH_OF[dtype]))

    def append_cached(self, layer, name, rows, dtype, cached):
        """`append` of rows that the model's cache holds too: `cached` are all of its rows, which then replace
        those before, or None."""
        if cached is None:
            self.append(layer, name, rows, dtype)
        else:
            self._rows[layer, name] = [cached.detach().to(TORCH_OF[dtype])]

    def names(self, layer):
        """Names of the tensors with rows for this layer."""
        return [name for of, name in self._rows if of == layer]

    def first_rows(self, layer, name, n):
        """The first n rows [heads, n, dim] of a tensor, as stored."""
        rows = torch.cat(self._rows[layer, name], 1)[:, :n]
        return to_stored(rows, STORAGE_OF[rows.dtype])

    def take(self, layer, name):
        """All rows [heads, tokens, dim] of a tensor, which are then forgotten."""
        rows = self._rows.pop((layer, name))
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)
