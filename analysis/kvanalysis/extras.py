"""What a method reports beside the contract's columns: the JSON of the column `extras`."""

import json

import numpy as np


def extra(rows, name):
    """float array: `name` of every row's extras; a column of that name goes first; NaN where absent."""
    if name in rows:
        return rows[name].to_numpy(dtype=float)
    if "extras" not in rows:
        return np.full(len(rows), np.nan)
    return np.array([_of(text, name) for text in rows["extras"]], dtype=float)


def _of(text, name):
    value = json.loads(text).get(name) if isinstance(text, str) and text else None
    return float(value) if isinstance(value, int | float) else np.nan
