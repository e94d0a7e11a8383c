"""What methods report of themselves: the column `extras` of a loaded table, a dict a cell."""

import pandas as pd


def extra(frame, name):
    """Series of floats: the column `name` if there is one, else that number of each row's extras; NaN where
    there is none."""
    if name in frame:
        return frame[name].astype(float)
    return all_extras(frame).map(lambda said: said.get(name)).astype(float)


def all_extras(frame):
    """Series of dicts {name: number}: each row's extras, {} where there are none; equal ones share a dict."""
    if "extras" not in frame:
        return pd.Series([{}] * len(frame), index=frame.index, dtype=object)
    return frame["extras"]
