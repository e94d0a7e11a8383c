"""Errors of the analysis: those of all packages (kvbase.errors), and one for each kind of configuration."""

from kvbase.errors import ConfigError, KvreplayError, ResultsError

__all__ = [
    "ConfigError",
    "FigureError",
    "KvreplayError",
    "PackageError",
    "ResultsError",
    "StudyError",
    "SweepError",
]


class FigureError(ConfigError):
    """A figure's configuration or one of its steps is wrong."""


class SweepError(ConfigError):
    """A sweep's configuration is wrong, or one of its rounds ended early."""


class StudyError(ConfigError):
    """A study's configuration is wrong, or one of its steps failed."""


class PackageError(ConfigError):
    """A Python package is not installed."""
