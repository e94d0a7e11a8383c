"""The command `kvreplay`: the program that the package holds, and the commands that Python adds to it.

Most calls end in the program, so nothing is imported here before it is needed.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import NoReturn

PACKAGE = os.path.realpath(__file__).rpartition("/")[0]
CHECKOUT = PACKAGE.removesuffix("/apps/kvreplay")  # in an installed package the same as PACKAGE
INSIDE, BUILT = f"{PACKAGE}/bin/kvreplay", f"{CHECKOUT}/build/release/kvreplay"
USAGE = 2  # exit code, as the program's own
NAME_METHODS = ("run", "sweep", "list", "describe", "validate")  # commands that look methods up


def program_path() -> str:
    """Path of the program: that of the package, or in a checkout the one that was built in build/release.

    Raises SystemExit with one line of advice when there is none.
    """
    for path in (INSIDE, BUILT):
        if os.access(path, os.X_OK):
            return path
    print(
        f"kvreplay: error: {INSIDE} is not there: install a wheel of kvreplay, or build the program "
        "(cmake --preset release && cmake --build build/release)",
        file=sys.stderr,
    )
    raise SystemExit(USAGE)


def data_folder() -> Path:
    """Folder with `configs/` and `traces/samples/`: in the package, or in a checkout its root."""
    from pathlib import Path

    packed = Path(PACKAGE) / "data"
    return packed if packed.is_dir() else Path(CHECKOUT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments`, without the program's name (default: those of this process).

    Returns the exit code of a command that Python adds. Every other call becomes the program, and does not
    return.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    offer_this_python()
    if words and words[0] in NAME_METHODS:
        offer_methods()
    if words and words[0] == "quickstart":
        from kvreplay.quickstart import main as command
    elif words and words[0] == "import":
        from kvreplay.importing import main as command
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
