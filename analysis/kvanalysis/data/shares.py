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


def with_common_budgets(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with one budget for all heads of an instance that were asked for one share: the rounded mean
    of theirs, so that a curve has one point there. Rows that were asked otherwise stay as they are."""
    rows = by_share(frame)
    asked = rows["share"].notna()
    if not asked.any():
        return frame
    mean = rows.groupby(["trace_id", "label", "share"])["budget_tokens"].transform("mean")
    budgets = rows["budget_tokens"].where(~asked, mean.round().astype("Int64"))
    common = rows.assign(budget_tokens=budgets).drop_duplicates(["key", "budget_tokens"], ignore_index=True)
    common.attrs = frame.attrs
    return common.drop(columns="share")
