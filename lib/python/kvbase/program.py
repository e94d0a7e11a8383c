"""The engine's program: where it is, and how to run it.

Most calls of the command `kvreplay` end in the program, so this module imports little.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn

ROOT = os.path.realpath(__file__).rpartition("/kvbase/")[0]  # site-packages, or lib/python of a checkout
CHECKOUT = ROOT.removesuffix("/lib/python")
PACKED, BUILT = f"{ROOT}/kvreplay/bin/kvreplay", f"{CHECKOUT}/build/release/kvreplay"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # the program saves finished work and ends
KILLED = 128  # plus the signal's number: the exit code of a process that a signal ended


def program_path(named: str | None = None) -> str:
    """Path of the program: `named`, $KVREPLAY, the program inside the package, or a checkout's build/release.

    Raises ConfigError where there is none.
    """
    named = named or os.environ.get("KVREPLAY")
    for path in (named,) if named else (PACKED, BUILT):
        if os.access(path, os.X_OK):
            return path
    from kvbase.errors import ConfigError

    if named:
        raise ConfigError(f"{named} cannot be run: name the engine's program in KVREPLAY, or unset it")
    raise ConfigError(
        f"{PACKED} is not there: install a wheel of kvreplay, or build the program "
        "(cmake --preset release && cmake --build build/release)"
    )


def become_program(words: Sequence[str]) -> NoReturn:
    """Replaces this process by the program, so that signals and the exit code are the program's own."""
    path = program_path()
    # Python ignores these two signals, and the program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(path, ["kvreplay", *words])


def call(words: Sequence[Any], accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
    """(exit code, stdout) of a short run of the program.

    Its messages go to stderr if it ends with a code beyond `accept`. Raises ConfigError if it cannot be
    started.
    """
    import subprocess

    done = _started(subprocess.run, words, capture_output=True, text=True, check=False)
    if done.returncode not in accept:
        sys.stderr.write(done.stderr)
    return done.returncode, done.stdout


def attend(words: Sequence[Any], quiet: bool = True) -> int:
    """The exit code of a run of the program that may take hours. Its messages go to stderr.

    quiet: its stdout is dropped. Signals that ask this process to end are passed on, and the program answers
    them. Raises ConfigError if it cannot be started.
    """
    import subprocess

    early: list[int] = []
    running: Any = None

    def pass_on(number: int, _: Any) -> None:
        if running is None:
            early.append(number)
        else:
            running.send_signal(number)

    # Python 3.10 has no `process_group`. A group of its own: ^C on a terminal reaches the program through
    # this process alone, and a second signal would end it at once.
    group: dict[str, Any] = (
        {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
    )
    with _handling(pass_on):
        running = _started(subprocess.Popen, words, stdout=subprocess.DEVNULL if quiet else None, **group)
        for number in early:
            running.send_signal(number)
        code = running.wait()
    return code if code >= 0 else KILLED - code


def _started(start: Callable[..., Any], words: Sequence[Any], **how: Any) -> Any:
    command = [program_path(), *map(str, words)]
    try:
        return start(command, **how)
    except OSError as problem:
        from kvbase.errors import ConfigError

        raise ConfigError(
            f"{command[0]}: cannot be run ({problem.strerror}); is KVREPLAY right?"
        ) from problem


@contextmanager
def _handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
