"""The rows of one trace, and what all figures of them share."""

from functools import cached_property

from ...drawing.budget_axes import styles_of
from ...stats.summary import summarise
from ...stats.words import replay_note


class OneTrace:
    """`rows`: those of one trace of `load`'s table."""

    def __init__(self, rows):
        self.rows = rows

    @cached_property
    def summary(self):
        """Means and intervals by label and budget (stats.summary)."""
        return summarise(self.rows)

    @cached_property
    def styles(self):
        """{label: Style}, the same in every figure."""
        return styles_of(self.summary)

    @cached_property
    def note(self):
        """What was compared, over how many heads and texts."""
        return replay_note(self.rows)
