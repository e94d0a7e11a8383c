"""Reads what `kvreplay run` wrote and shows it: tables, statistics, figures, one self-contained page."""

from .errors import ResultsError

__version__ = "0.1.0"
__all__ = ["ResultsError", "__version__", "load"]


def __getattr__(name):
    """`kvanalysis.load` brings pandas with it: only who asks for it waits."""
    if name == "load":
        from .data.load import load

        return load
    raise AttributeError(f"module {__name__} has no attribute {name}")
