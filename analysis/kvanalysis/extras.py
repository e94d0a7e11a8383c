"""What methods report of themselves: the column `extras` of results.csv, a JSON object a cell."""

import json

import numpy as np
import pandas as pd


def extra(frame, name):
    """Series of floats: the number `name` of each row's extras, NaN where there is none."""
    if "extras" not in frame:
        return pd.Series(np.nan, index=frame.index)
    parsed = {text: json.loads(text) if text else {} for text in frame["extras"].unique()}
    return frame["extras"].map(lambda text: parsed[text].get(name)).astype(float)
