"""What methods report of themselves: the column `extras` of results.csv, a JSON object a cell."""

import json

import numpy as np
import pandas as pd


def extra(frame, name):
    """Series of floats: the column `name` if there is one, else that number of each row's extras; NaN where
    there is none."""
    if name in frame:
        return frame[name].astype(float)
    if "extras" not in frame:
        return pd.Series(np.nan, index=frame.index)
    texts = frame["extras"].where(frame["extras"].map(lambda text: isinstance(text, str)), "")
    parsed = {text: json.loads(text) if text else {} for text in texts.unique()}
    return texts.map(lambda text: parsed[text].get(name)).astype(float)
