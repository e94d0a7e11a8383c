"""Files that are written completely or not at all."""

import os
from contextlib import contextmanager, suppress


@contextmanager
def whole_file(path):
    """A path beside `path` to write to. At the end the written file replaces `path`; if the block
    raises, `path` is unchanged."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def write_atomic(path, text):
    """Writes the text; returns the path."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")
    return path
