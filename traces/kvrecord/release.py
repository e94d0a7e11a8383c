"""Supported releases of transformers, and the messages for others."""

from importlib import metadata

from kvbase.errors import TraceError

# The first release in which the attention of a loaded model can be replaced through the names used here.
OLDEST = (4, 56)
SPECIFIER = "transformers>=4.56,<6"
REMEDY = f"pip install '{SPECIFIER}'"


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as "4.57.6" or "5.0.0rc1"; TraceError for anything else."""
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError as error:
        raise TraceError(
            f"transformers {version!r} has no release that the recorder can read: {REMEDY}"
        ) from error
    return major, minor


def transformers_version() -> str:
    """The installed version of transformers, for example "4.57.6"."""
    return metadata.version("transformers")


def require_release() -> None:
    """TraceError with the remedy if transformers is too old for the hook.

    Newer releases than those tested may work: the recorder measures its assumptions on every model.
    """
    version = transformers_version()
    if release_of(version) < OLDEST:
        raise TraceError(
            f"transformers {version} cannot be recorded: the recorder needs {SPECIFIER}: {REMEDY}"
        )


def interface_changed(error: ImportError) -> TraceError:
    """TraceError for a release that lacks the attention interface under the expected names."""
    version = transformers_version()
    return TraceError(f"transformers {version} offers no attention interface ({error}): {REMEDY}")
