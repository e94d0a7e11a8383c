"""Reads what `kvreplay run` wrote and shows it: statistics, figures, one self-contained page."""

from .data.load import load
from .errors import ResultsError

__all__ = ["ResultsError", "load"]
