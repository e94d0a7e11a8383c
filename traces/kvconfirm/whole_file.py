"""Writes files that appear only when complete."""

import os
from contextlib import contextmanager

from kvtrace.writer import part_path


@contextmanager
def whole_file(path, binary=False):
    """An open file that replaces `path` at the end of the block. If the block raises, `path` is unchanged.
    Text is UTF-8; line ends are not translated."""
    part = part_path(path)
    how = {"mode": "wb"} if binary else {"mode": "w", "newline": "", "encoding": "utf-8"}
    try:
        with part.open(**how) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
