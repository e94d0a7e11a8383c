"""Cells whose budgets were asked for as shares of the full cache's bytes."""

import pandas as pd


def by_share(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table with the column `share`: the share of the full cache's bytes, in (0, 1], for which the
    budget was asked, NaN where it was asked otherwise. A cell that stands for several shares has a row for
    each; heads may have budgets of their own at one share."""
    if "budget_share" not in frame:
        return frame.assign(share=float("nan"))
    asked = frame.assign(share=frame["budget_share"].str.split(";")).explode("share", ignore_index=True)
    return asked.assign(share=pd.to_numeric(asked["share"].replace("", None)).astype(float))
