"""The evicted tokens to which later queries attend most."""

import pandas as pd

from ...drawing.saving import Picture, in_grid
from ...drawing.style import COLOURS
from .residence import evictions


def evictions_picture(table, where, listed):
    """The `listed` worst evictions of each label. `table`: rows of kept_timeline, with `label` and `text`."""
    worst = pd.concat([evictions(rows).head(listed) for _, rows in table.groupby("label")])
    worst["rank"] = worst.groupby("label").cumcount() + 1
    most = worst["later_mass"].max() if len(worst) else 1.0
    panels = [
        _bars(table[table["label"] == label], worst[worst["label"] == label], label, most)
        for label in sorted(table["label"].unique())
    ]
    note = (
        f"{where}. The {listed} evicted tokens with the largest exact attention from later queries, mean over"
        " the group's query heads, summed over the rows after the eviction. Beside each: its text, its"
        " position, and the step that evicted it."
    )
    drawn = in_grid(panels, ([], []), note, on_page=2, height=1.75)
    return Picture("Evicted tokens that later queries attend to", worst, drawn, _listing(worst), "evicted")


def _bars(rows, worst, label, most):
    def panel(axes):
        axes.barh(worst["rank"], worst["later_mass"], color=COLOURS[0], height=0.7)
        for _, token in worst.iterrows():
            axes.text(
                token["later_mass"] + most * 0.01,
                token["rank"],
                _name(token),
                fontsize=5.5,
                va="center",
                ha="left",
            )
        axes.set(xlim=(0, most * 1.75), ylim=(max(len(worst), 1) + 0.6, 0.4))
        axes.set_yticks(worst["rank"])
        axes.tick_params(axis="y", labelsize=5.5, length=0)
        axes.grid(visible=False, axis="y")
        axes.set_title(f"{label}: {eviction_summary(rows)}", fontsize=6.5)
        axes.set(xlabel="later mass [rows]")

    return panel


def _name(token):
    text = f"\u201c{token['text']}\u201d " if token["text"] else ""
    return f"{text}{token['position']:.0f}, evicted {token['evicted_at']:.0f}"


def eviction_summary(rows):
    """The attention lost with evicted tokens and their median age, in words."""
    gone = rows[rows["evicted_at"].notna()]
    age = f"median age {gone['age'].median():.0f}" if len(gone) else "nothing evicted"
    return f"lost {rows['later_mass'].sum():.1f} rows, {age}"


def _listing(worst):
    return "; ".join(
        f"{label}: "
        + ", ".join(f"{_name(token)} ({token['later_mass']:.2g})" for _, token in rows.iterrows())
        for label, rows in worst.groupby("label", sort=True)
    )
