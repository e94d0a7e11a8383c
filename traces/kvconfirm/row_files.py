"""confirm_rows/KEY.npz: what every row of an instance loses."""

from dataclasses import fields

import numpy as np
from kvdump.errors import UsageError

from .losses import RowLosses
from .whole_file import whole_file

FOLDER = "confirm_rows"


def write_rows(folder, key, losses):
    """Publishes RowLosses of the instance `key` of confirm.csv as float32 arrays; row i predicts the token
    i + 1 behind the prompt's first later one."""
    arrays = {one.name: np.asarray(getattr(losses, one.name), np.float32) for one in fields(RowLosses)}
    path = folder / FOLDER / f"{key}.npz"
    try:
        path.parent.mkdir(exist_ok=True)
        with whole_file(path, binary=True) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error}") from error
