"""Methods of installed packages for the engine's program: starts their host, and names its socket.

The program connects once for each of its threads, and so do the workers of a sweep on this machine. The host
ends with the process that this one becomes or stays.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile

SOCKET, COMMAND = "KVREPLAY_METHODS", "KVREPLAY_COMMAND"  # read by the program: apps/offered, apps/sweep
WAITING = 128  # connections that may wait to be accepted


def offer_methods() -> None:
    """Starts the host of the entry points of the group kvreplay.methods, unless one listens already."""
    if _answers(os.environ.get(SOCKET)):
        return
    folder = tempfile.mkdtemp(prefix="kvreplay-")
    path = f"{folder}/methods"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen(WAITING)
        subprocess.Popen(
            [sys.executable, "-m", "kvreplay.host", str(server.fileno()), folder, str(os.getpid())],
            pass_fds=(server.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,  # stdout is the program's data
        )
    os.environ[SOCKET] = path
    command = shutil.which("kvreplay", path=os.path.dirname(sys.executable))  # noqa: PTH120
    if command:
        os.environ[COMMAND] = command  # what a job on another machine starts


def _answers(path: str | None) -> bool:
    """Whether a host listens there: the variable may come from another machine."""
    if not path:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(path)
        except OSError:
            return False
    return True
