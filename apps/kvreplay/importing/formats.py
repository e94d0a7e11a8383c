"""The table of formats. The first format that recognises a source reads it."""

from pathlib import Path

from kvbase.errors import ConfigError
from kvbase.files import no_such_file

from . import flashinfer, llama_cpp, lmcache, npz_file, safetensors_file, vllm
from .arrays import READERS, fail
from .format_type import Format

FORMATS = (
    llama_cpp.FORMAT,
    flashinfer.FORMAT,
    vllm.FORMAT,
    lmcache.FORMAT,
    safetensors_file.FORMAT,
    npz_file.FORMAT,
)


def format_of(sources: list[Path], name: str | None) -> Format:
    """The format called `name`, or the one that recognises the files if `name` is None. ConfigError for an
    unknown name, TraceError if no format recognises the files."""
    if name is not None:
        for known in FORMATS:
            if known.name == name:
                return known
        names = ", ".join(known.name for known in FORMATS)
        raise ConfigError(f"format {name} is not known. Known are {names}")
    for source in sources:
        if not source.exists():
            fail(source, no_such_file(source))
    for known in FORMATS:
        if known.recognises(sources):
            return known
    return fail(
        sources[0],
        f"has no known format. Known suffixes are {', '.join(READERS)}; or name the format",
    )
