"""What can go wrong for a user, each with the exit code that the command line returns."""


class DumpError(Exception):
    """The model or the trace cannot be dumped (exit code 3); the message names the remedy."""

    exit_code = 3


class UsageError(DumpError):
    """The request itself is wrong: an option, a prompt file, a selection (exit code 2)."""

    exit_code = 2
