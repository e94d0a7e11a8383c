"""Files that are written whole or not at all, and why a file cannot be read or written, for a message."""

from __future__ import annotations

import difflib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NUMBER = re.compile(r"\[Errno -?\d+\]\s*")
HDF5 = re.compile(r"Unable to (?:synchronously )?open file \((.*)\)")


NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def take_lock(descriptor: int, wait: bool = True) -> None:
    """Locks an open file or folder against other processes until it is closed. BlockingIOError if another one
    holds it, unless `wait`. A file system without locks has none to take (NFS without lockd)."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to. At the end of the block the written file is synced to disk and
    replaces `path`; if the block raises, `path` is unchanged."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        with draft.open("rb+") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> Path:
    """Writes the text, as UTF-8 with its own line ends; returns the path."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")
    return path


def reason(error: BaseException) -> str:
    """The reason in one line, without the error's number and path: the message names the path itself."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # h5py's own text of such an error names the path twice
    text = NUMBER.sub("", " ".join(str(error).split()))
    return HDF5.sub(r"\1", text) or "it ends too early"


def no_such_file(path: str | Path) -> str:
    """ "no such file", with the file beside it that was probably meant."""
    path = Path(path)
    try:
        beside = [other.name for other in path.parent.iterdir()]
    except OSError:
        folder = path.parent
        return "no such file" if folder.is_dir() else f"no such file: there is no folder {folder}"
    close = difflib.get_close_matches(path.name, beside, 1)
    return f"no such file (did you mean {path.with_name(close[0])}?)" if close else "no such file"


def why_unreadable(path: str | Path, error: BaseException) -> str:
    """Why a file could not be read, for a message: there is none, or the reason."""
    return no_such_file(path) if isinstance(error, FileNotFoundError) else f"cannot be read: {reason(error)}"


def why_unwritable(path: str | Path) -> str | None:
    """Why no file can be made at `path`, whose missing folders would be made; None if one can."""
    path = Path(path)
    folder = path if os.access(path, os.F_OK) and path.is_dir() else path.parent
    while not os.access(folder, os.F_OK):
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is a file, not a folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"you may not write to the folder {folder}"
