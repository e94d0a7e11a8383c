"""What can go wrong for a user. Each message names the place, the value and the remedy, on one line."""


class KvreplayError(Exception):
    """Any error that a user can cause; `exit_code` is what a command line returns for it."""

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(" ".join(str(message).split()))


class KvreplayWarning(UserWarning):
    """What is odd about a trace or a request, and allowed."""


class ConfigError(KvreplayError, ValueError):
    """Bad usage or configuration (exit code 2)."""

    exit_code = 2


class OutputError(KvreplayError, OSError):
    """The output cannot be written (exit code 2)."""

    exit_code = 2


class TraceError(KvreplayError, ValueError):
    """A bad or missing trace, or numbers that cannot become one (exit code 3)."""

    exit_code = 3


class DeviceError(KvreplayError, RuntimeError):
    """No such device, or out of memory (exit code 4)."""

    exit_code = 4
