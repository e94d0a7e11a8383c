"""Arrays in HDF5 files: saved by a run for each cell, or recorded in a trace."""

from itertools import pairwise

import numpy as np
from kvbase.files import why_unreadable
from kvtrace.disk_file import open_hdf5

from ..errors import ResultsError


class Arrays:
    """curves.h5, kept.h5, outputs.h5 or projections.h5 (docs/formats.md): datasets of each cell by its
    key."""

    def __init__(self, path):
        if not path.is_file():
            raise ResultsError(f"{path}: no such file; add `output: {{save: [{path.stem}]}}`")
        self._path = path

    def __getitem__(self, key):
        """{dataset: array} of one cell; raises ResultsError if the run saved none for it."""
        return next(self.each([key]))

    def each(self, keys, names=None):
        """The datasets of several cells, one after the other, from one open file. `names`: datasets to
        read (default: all); a run has thousands of cells, and every dataset takes time."""
        try:
            with open_hdf5(self._path) as file:
                for key in keys:
                    if key not in file:
                        raise ResultsError(f"{self._path}: has nothing for cell {key}")
                    cell = file[key]
                    if lacking := [name for name in names or () if name not in cell]:
                        raise ResultsError(
                            f"{self._path}: cell {key} lacks {', '.join(lacking)}: it was written by an"
                            " older version; replay into a new folder"
                        )
                    yield {name: cell[name][()] for name in names or cell}
        except OSError as problem:
            raise ResultsError(f"{self._path}: {why_unreadable(self._path, problem)}") from problem

    def lists(self, key, name="kept"):
        """The ragged token lists of one cell: resident after the prompt, then after each step."""
        cell = self[key]
        flat, off = cell[f"{name}_flat"], cell[f"{name}_off"]
        return [flat[a:b] for a, b in pairwise(off)]


class Recorded:
    """A trace as float64 arrays, for pictures and independent checks of small parts. Raises TraceError."""

    def __init__(self, path):
        from kvtrace.trace import Trace  # loads the engine

        self._trace = Trace(path)

    def prompts(self):
        return self._trace.prompts

    def layers(self, prompt):
        return self._trace.layers(prompt)

    def layer(self, prompt, layer):
        """kvtrace's Layer of a prompt."""
        return self._trace.layer(layer, prompt)

    def attribute(self, name, prompt, layer=None):
        """A fact of a prompt or of a layer, by the name of kvtrace's Prompt or Layer."""
        held = self._trace.prompt(prompt)
        return getattr(held if layer is None else held.layer(layer), name)

    def tensor(self, prompt, layer, name):
        """float64 array of q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv] or another array of a layer. KeyError
        if the layer has none."""
        array = getattr(self.layer(prompt, layer), name)
        if array is None:
            raise KeyError(name)
        return array.astype(np.float64)

    def token_texts(self, prompt):
        """The text of each token, [T] str; "" for each if the trace has none (`kvreplay record
        --with-text`)."""
        held = self._trace.prompt(prompt)
        return held.token_text or [""] * held.n_tokens


def holds_first_token(path, keys):
    """[cells] 1 if the cell holds token 0 after its prompt, 0 if not, NaN if the file lacks the cell; None
    without the file. `keys`: keys of the cells. Raises ResultsError.

    Lists are ascending, so token 0 is the first of a list or not in it (docs/formats.md).
    """
    if not path.is_file():
        return None
    try:
        with open_hdf5(path) as file:
            return np.array([_holds(file, key) for key in keys], dtype=float)
    except OSError as problem:
        raise ResultsError(f"{path}: {why_unreadable(path, problem)}") from problem


def held_by_some(path, keys, spans):
    """Share of the tokens in `spans` [n, 2] (from, to) that one of these cells or more holds after its
    prompt; NaN if the file lacks a cell. Raises ResultsError."""
    wanted = np.unique(np.concatenate([np.arange(first, last) for first, last in spans]))
    held = np.zeros(len(wanted), dtype=bool)
    try:
        with open_hdf5(path) as file:
            for key in keys:
                group = file.get(key)
                if group is None or "kept_off" not in group:
                    return np.nan
                held |= np.isin(wanted, group["kept_flat"][: group["kept_off"][1]])
    except OSError as problem:
        raise ResultsError(f"{path}: {why_unreadable(path, problem)}") from problem
    return float(held.mean())


def _holds(file, key):
    group = file.get(key)
    if group is None or "kept_off" not in group or len(group["kept_off"]) < 2:
        return np.nan
    # The first list is the one after the prompt; if it is empty, the next list's tokens follow at once.
    return float(group["kept_off"][1] > 0 and group["kept_flat"][0] == 0)
