"""Reads the results of `kvreplay run` and shows them: tables, statistics, figures, one self-contained
page."""

from .errors import ResultsError

__version__ = "0.1.0"
__all__ = ["ResultsError", "__version__", "load"]


def __getattr__(name):
    """Imports `kvanalysis.load`, and with it pandas, only when it is used."""
    if name == "load":
        from .data.load import load

        return load
    raise AttributeError(f"module {__name__} has no attribute {name}")
