"""Allows one process at a time in a folder."""

import os
from contextlib import contextmanager

from kvbase.files import take_lock

from ..errors import FigureError


@contextmanager
def alone(out, does="draws"):
    """Makes the folder and locks it: two processes that write into one would read each other's half-written
    files. Raises FigureError if another process holds it; `does` says in the message what that process
    does."""
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        take_lock(folder, wait=False)
        yield
    except BlockingIOError as problem:
        raise FigureError(f"{out}: another process {does} there; wait, or choose another -o") from problem
    finally:
        os.close(folder)
