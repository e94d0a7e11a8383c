"""Text files that are there whole or not at all."""

import os
from contextlib import contextmanager

from kvdump.writer import part_path


@contextmanager
def whole_file(path):
    """An open file that takes the place of `path` at the end; if the block raises, `path` stays as it was."""
    part = part_path(path)
    try:
        with part.open("w", newline="", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
