"""Which cells of a run hold the first token of their prompt, where attention sinks: from kept.h5."""

import h5py
import numpy as np

from ..errors import ResultsError
from .results_csv import one_line


def holds_first_token(path, keys):
    """[cells] 1 where the cell holds token 0 after its prompt, 0 where not, NaN where the file says nothing
    of it; None without the file. `keys`: of cells. Raises ResultsError.

    Lists are ascending, so token 0 is the first of a list or not in it (docs/formats.md).
    """
    if not path.is_file():
        return None
    try:
        with h5py.File(path) as file:
            return np.array([_holds(file, key) for key in keys], dtype=float)
    except OSError as problem:
        raise ResultsError(f"{path}: cannot be read: {one_line(problem)}") from problem


def _holds(file, key):
    group = file.get(key)
    if group is None or "kept_off" not in group or len(group["kept_off"]) < 2:
        return np.nan
    # The list after the prompt is the first one, and an empty one is followed by another's tokens.
    return float(group["kept_off"][1] > 0 and group["kept_flat"][0] == 0)
