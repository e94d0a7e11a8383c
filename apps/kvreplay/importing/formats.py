"""The table of formats. A source is read by the first that recognises it."""

from pathlib import Path

from ..errors import ConfigError
from . import llama_cpp, lmcache, npz_file, safetensors_file
from .arrays import READERS, fail
from .format_type import Format

FORMATS = (llama_cpp.FORMAT, lmcache.FORMAT, safetensors_file.FORMAT, npz_file.FORMAT)


def format_of(sources: list[Path], name: str | None) -> Format:
    """The format of this name, or the one that the files are of. ConfigError on a name that is none."""
    if name is not None:
        for known in FORMATS:
            if known.name == name:
                return known
        names = ", ".join(known.name for known in FORMATS)
        raise ConfigError(f"format {name} is not known. Known are {names}")
    for source in sources:
        if not source.exists():
            fail(source, "no such file")
    for known in FORMATS:
        if known.recognises(sources):
            return known
    return fail(
        sources[0],
        f"is of no format that can be imported. Known are files {', '.join(READERS)}, or say which",
    )
