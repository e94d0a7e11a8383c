"""Errors that a user can cause and mend. Each message names the place, the value and the remedy.

All packages raise these, so `except kvreplay.KvreplayError` catches every one of them, and a command line
returns `exit_code`.
"""


class KvreplayError(Exception):
    """Any error that a user can cause. `exit_code` is what a command line returns for it.

    message: one line for each mistake. exit_code: instead of the class's own, where a program that was run
    ended with another one.
    """

    exit_code = 1

    def __init__(self, message: str, exit_code: int | None = None):
        super().__init__("\n".join(" ".join(line.split()) for line in str(message).splitlines()))
        if exit_code is not None:
            self.exit_code = exit_code


class KvreplayWarning(UserWarning):
    """Something unusual about a trace or a request, which is allowed."""


class ConfigError(KvreplayError, ValueError):
    """Bad usage or configuration (exit code 2)."""

    exit_code = 2


class OutputError(KvreplayError, OSError):
    """The output cannot be written (exit code 2)."""

    exit_code = 2


class TraceError(KvreplayError, ValueError):
    """A bad or missing trace, or a model or numbers that cannot become one (exit code 3)."""

    exit_code = 3


class ResultsError(KvreplayError, ValueError):
    """Results of a run are missing, unreadable or not kvreplay's (exit code 3)."""

    exit_code = 3


class DeviceError(KvreplayError, RuntimeError):
    """No such device, or out of memory (exit code 4)."""

    exit_code = 4
