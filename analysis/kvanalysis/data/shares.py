"""Cells whose budgets were requested as shares of the full cache's bytes."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True, order=True)
class Share:
    """A budget that was requested as a share of the full cache's bytes, in (0, 1]."""

    value: float

    def __str__(self) -> str:
        return f"{100 * self.value:g} %"


def shares_of(rows: pd.DataFrame) -> list[Share]:
    """The shares that any of the rows was requested at, ascending."""
    return sorted({share for text in _asked(rows).unique() for share in _read(text)})


def at_share(rows: pd.DataFrame, share: Share) -> pd.Series:
    """For each row whether it was requested at the share."""
    asked = _asked(rows)
    return asked.isin([text for text in asked.unique() if share in _read(text)])


def without_share(rows: pd.DataFrame) -> pd.Series:
    """For each row whether it was requested at no share."""
    return _asked(rows).eq("")


def _asked(rows):
    if "budget_share" not in rows:
        return pd.Series("", index=rows.index)
    return rows["budget_share"].fillna("").astype(str)


def _read(text):
    return [Share(float(part)) for part in text.split(";") if part]


def by_share(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table with the column `share`: the share of the full cache's bytes, in (0, 1], for which the
    budget was requested, NaN if it was requested otherwise. A cell that stands for several shares has a row
    for each, with that share in `budget_share`; at one share, heads may have different budgets."""
    if "budget_share" not in frame:
        return frame.assign(share=float("nan"))
    asked = frame.assign(budget_share=frame["budget_share"].str.split(";"))
    asked = asked.explode("budget_share", ignore_index=True)
    asked.attrs = frame.attrs
    return asked.assign(share=pd.to_numeric(asked["budget_share"].replace("", None)).astype(float))


def by_share_with_mean_budgets(frame: pd.DataFrame) -> pd.DataFrame:
    """`by_share` with one budget for all heads of an instance at one share: the rounded mean of theirs. Other
    rows are unchanged."""
    rows = by_share(frame)
    mean = rows.groupby(["trace_id", "label", "share"])["budget_tokens"].transform("mean")
    budgets = rows["budget_tokens"].where(rows["share"].isna(), mean.round().astype("Int64"))
    return rows.assign(budget_tokens=budgets)


def with_common_budgets(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with such budgets, so that a curve has one point at a share; a cell has one row at a budget,
    with all shares for which it was requested there."""
    rows = by_share_with_mean_budgets(frame)
    if rows["share"].isna().all():
        return frame
    place = ["key", "budget_tokens"]
    shares = rows.groupby(place, dropna=False)["budget_share"].transform(";".join)
    return rows.assign(budget_share=shares).drop_duplicates(place, ignore_index=True).drop(columns="share")
