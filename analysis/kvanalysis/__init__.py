"""Reads what `kvreplay run` wrote and shows it: statistics, figures, one self-contained page."""

from .load import ResultsError, load

__all__ = ["ResultsError", "load"]
