"""Stores rows on disk until their prompt is complete, so that memory holds one layer at a time."""

import shutil
from pathlib import Path

import numpy as np
from kvbase.errors import TraceError
from kvbase.files import reason


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
        from .rows_in_memory import to_stored  # torch is loaded where a model is

        by_token = np.ascontiguousarray(to_stored(rows, dtype).swapaxes(0, 1))
        self._row[layer, name] = (by_token.shape[1:], by_token.dtype)
        try:
            with self._file(layer, name).open("ab") as file:
                file.write(by_token.data)
        except OSError as error:
            raise TraceError(f"{self._file(layer, name)}: cannot write: {reason(error)}") from error

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
