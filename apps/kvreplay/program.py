"""The command `kvreplay`: the program that the package holds, and the commands that Python adds to it.

Most calls end in the program, so nothing is imported here before it is needed.
"""

from __future__ import annotations

import os
import signal
import sys

from .places import program_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

NAME_METHODS = ("run", "compare", "sweep", "list", "describe", "validate")  # commands that look methods up


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments`, without the program's name (default: those of this process).

    Returns the exit code of a command that Python adds. Every other call becomes the program, and does not
    return.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    offer_this_python()
    if any(word in NAME_METHODS for word in words):
        offer_methods()
    if words and words[0] == "quickstart":
        from kvreplay.quickstart import main as command
    elif words and words[0] == "import":
        from kvreplay.importing.cli import main as command
    else:
        become_program(words)
    return command(words[1:])


def offer_this_python() -> None:
    """Names this Python in KVREPLAY_PYTHON, unless the user named one: the program draws figures with it."""
    if sys.executable:
        os.environ.setdefault("KVREPLAY_PYTHON", sys.executable)


def offer_methods() -> None:
    """Names this Python in KVREPLAY_HOST, where an installed package offers methods: the program asks it for
    them."""
    from importlib.metadata import entry_points

    if entry_points(group="kvreplay.methods"):
        os.environ.setdefault("KVREPLAY_HOST", sys.executable)


def become_program(words: Sequence[str]) -> NoReturn:
    """Replaces this process, so that signals and the exit code are the program's own."""
    path = program_path()
    # Python ignores these two, and what is ignored stays so in the program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(path, ["kvreplay", *words])
