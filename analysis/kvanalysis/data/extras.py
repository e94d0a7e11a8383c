"""Numbers that methods report about themselves: the column `extras` of a loaded table, a dict per cell."""

import pandas as pd


def extra(frame, name):
    """Series of floats: the column `name` if it exists, else that number in each row's extras; NaN where
    it is missing."""
    if name in frame:
        return frame[name].astype(float)
    return all_extras(frame).map(lambda said: said.get(name)).astype(float)


def all_extras(frame):
    """Series of dicts {name: number}: each row's extras, {} if it has none; equal ones share a dict."""
    if "extras" not in frame:
        return pd.Series([{}] * len(frame), index=frame.index, dtype=object)
    return frame["extras"]
