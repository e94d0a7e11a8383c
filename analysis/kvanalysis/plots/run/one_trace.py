"""The rows of one trace, and what all figures of them share."""

from functools import cached_property

from ...drawing.budget_axes import styles_of
from ...loss.predicted import losses_of
from ...stats.summary import summarise


class OneTrace:
    """`rows`: those of one trace of `load`'s table. Where they are known already: `summary`, its rows of
    `summarise`, `styles`, the looks of the labels of all traces, and `losses`, its Losses."""

    def __init__(self, rows, summary=None, styles=None, losses=None):
        self.rows = rows
        self._summary, self._styles, self._losses = summary, styles, losses

    @cached_property
    def summary(self):
        """Means and intervals by label and budget (stats.summary)."""
        return summarise(self.rows) if self._summary is None else self._summary

    @cached_property
    def styles(self):
        """{label: Style}, the same in every figure."""
        return styles_of(self.summary) if self._styles is None else self._styles

    @cached_property
    def losses(self):
        """What each instance costs the model (loss.predicted.Losses); None where the trace holds no
        gradient."""
        return losses_of(self.rows) if self._losses is None else self._losses
