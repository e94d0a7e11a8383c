"""What methods report of themselves: the column `extras` of results.csv, a JSON object a cell."""

import json

import pandas as pd


def extra(frame, name):
    """Series of floats: the column `name` if there is one, else that number of each row's extras; NaN where
    there is none."""
    if name in frame:
        return frame[name].astype(float)
    return all_extras(frame).map(lambda said: said.get(name)).astype(float)


def all_extras(frame):
    """Series of dicts: each row's extras, {} where there are none; equal texts share one dict."""
    if "extras" not in frame:
        return pd.Series([{}] * len(frame), index=frame.index, dtype=object)
    texts = frame["extras"].where(frame["extras"].map(lambda text: isinstance(text, str)), "")
    parsed = {text: json.loads(text) if text else {} for text in texts.unique()}
    return texts.map(parsed.get)
