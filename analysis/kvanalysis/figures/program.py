"""The kvreplay program: where it is, and running it to its end."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from ..errors import FigureError

CHECKOUT = Path(__file__).resolve().parents[3]
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # the program saves what is finished and ends


# The argument of Popen for a process group of its own: Python 3.10 has a longer way.
OWN_GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
KILLED = 128  # and the signal's number: the exit code of a process that a signal ended


def program():
    """The kvreplay program: KVREPLAY, that of this checkout, the one on the path, or that of this Python's
    environment. Raises FigureError."""
    built = CHECKOUT / "build/release/kvreplay"
    found = os.environ.get("KVREPLAY") or (str(built) if built.is_file() else shutil.which("kvreplay"))
    found = found or shutil.which("kvreplay", path=str(Path(sys.executable).parent))
    if not found:
        raise FigureError("kvreplay is not built: run `bash apps/quickstart.sh`, or name it in KVREPLAY")
    return found


def call(words, accept=(0,)):
    """(exit code, stdout) of a command; the messages of one that ends with a code beyond `accept` go to our
    stderr. Raises FigureError if it cannot be started."""
    done = _started(subprocess.run, words, capture_output=True, text=True, check=False)
    if done.returncode not in accept:
        sys.stderr.write(done.stderr)
    return done.returncode, done.stdout


def attend(words):
    """The exit code of a command that may take hours: its messages are ours, its stdout is dropped, and what
    asks us to end is its to answer. Raises FigureError if it cannot be started."""
    early, running = [], None

    def pass_on(number, _):
        if running is None:
            early.append(number)
        else:
            running.send_signal(number)

    with _handling(pass_on):
        # A group of its own: a terminal's ^C reaches it through us alone; a second one would cut it short.
        running = _started(subprocess.Popen, words, stdout=subprocess.DEVNULL, **OWN_GROUP)
        for number in early:
            running.send_signal(number)
        code = running.wait()
    return code if code >= 0 else KILLED - code


def _started(start, words, **how):
    command = [program(), *map(str, words)]
    try:
        return start(command, **how)
    except OSError as problem:
        why = f"{command[0]}: cannot be run ({problem.strerror}); is KVREPLAY right?"
        raise FigureError(why) from problem


@contextmanager
def _handling(handler):
    before = {number: signal.signal(number, handler) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
