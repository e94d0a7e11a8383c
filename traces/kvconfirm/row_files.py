"""confirm_rows/KEY.npz: the losses of every row of an instance."""

from dataclasses import fields

import numpy as np
from kvbase.errors import ConfigError
from kvbase.files import reason, whole_file

from .losses import RowLosses

FOLDER = "confirm_rows"


def write_rows(folder, key, losses):
    """Writes RowLosses of the instance `key` of confirm.csv as float32 arrays. Row i predicts token P + i +
    1, where P is the length of the prompt. Raises ConfigError."""
    arrays = {one.name: np.asarray(getattr(losses, one.name), np.float32) for one in fields(RowLosses)}
    path = folder / FOLDER / f"{key}.npz"
    try:
        path.parent.mkdir(exist_ok=True)
        with whole_file(path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {reason(error)}") from error
