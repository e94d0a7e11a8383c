"""Files that are there whole or not at all."""

import os
from contextlib import contextmanager

from kvdump.writer import part_path


@contextmanager
def whole_file(path, binary=False):
    """An open file that takes the place of `path` at the end; if the block raises, `path` stays as it was.
    Text is UTF-8 with its line ends as they are written."""
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
