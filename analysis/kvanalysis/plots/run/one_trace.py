"""The rows of one trace, and data that all of their figures share."""

from functools import cached_property

from ...drawing.budget_axes import styles_of
from ...loss.predicted import losses_of
from ...stats.summary import summarise


class OneTrace:
    """`rows`: the rows of one trace in `load`'s table. If already known: `summary`, its rows of
    `summarise`; `styles`, the styles of the labels of all traces; and `losses`, its Losses."""

    def __init__(self, rows, summary=None, styles=None, losses=None):
        self.rows = rows
        self._summary, self._styles, self._losses = summary, styles, losses

    @cached_property
    def summary(self):
        """Means and intervals by label and budget (stats.summary)."""
        return summarise(self.rows) if self._summary is None else self._summary

    @cached_property
    def styles(self):
        """{label: Style}, equal in every figure."""
        return styles_of(self.summary) if self._styles is None else self._styles

    @cached_property
    def losses(self):
        """The loss that each instance costs the model (loss.predicted.Losses); None if the trace holds no
        gradient."""
        return losses_of(self.rows) if self._losses is None else self._losses
