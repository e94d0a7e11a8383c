"""Cells whose budgets were asked for as shares of the full cache's bytes."""

import pandas as pd


def by_share(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table with the column `share`: the share of the full cache's bytes, in (0, 1], for which the
    budget was asked, NaN where it was asked otherwise. A cell that stands for several shares has a row for
    each, whose `budget_share` is that one; heads may have budgets of their own at one share."""
    if "budget_share" not in frame:
        return frame.assign(share=float("nan"))
    asked = frame.assign(budget_share=frame["budget_share"].str.split(";"))
    asked = asked.explode("budget_share", ignore_index=True)
    asked.attrs = frame.attrs
    return asked.assign(share=pd.to_numeric(asked["budget_share"].replace("", None)).astype(float))


def by_share_with_mean_budgets(frame: pd.DataFrame) -> pd.DataFrame:
    """`by_share` with one budget for all heads of an instance that were asked for one share: the rounded mean
    of theirs. Rows that were asked otherwise stay as they are."""
    rows = by_share(frame)
    mean = rows.groupby(["trace_id", "label", "share"])["budget_tokens"].transform("mean")
    budgets = rows["budget_tokens"].where(rows["share"].isna(), mean.round().astype("Int64"))
    return rows.assign(budget_tokens=budgets)


def with_common_budgets(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with such budgets, so that a curve has one point at a share; a cell stands once at a budget,
    with all shares for which it was asked there."""
    rows = by_share_with_mean_budgets(frame)
    if rows["share"].isna().all():
        return frame
    place = ["key", "budget_tokens"]
    shares = rows.groupby(place, dropna=False)["budget_share"].transform(";".join)
    return rows.assign(budget_share=shares).drop_duplicates(place, ignore_index=True).drop(columns="share")
