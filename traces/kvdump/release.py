"""Which releases of transformers models are recorded with, and what is said of the others."""

from importlib import metadata

from .errors import DumpError

# The first release in which a loaded model lets its attention be replaced, by the names that kvdump uses.
OLDEST = (4, 56)
SPECIFIER = "transformers>=4.56,<6"
REMEDY = f"pip install '{SPECIFIER}'"


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as "4.57.6" or "5.0.0rc1"; DumpError for anything else."""
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError as error:
        raise DumpError(f"transformers {version!r} has no release that kvdump can read: {REMEDY}") from error
    return major, minor


def transformers_version() -> str:
    """The installed version of transformers, for example "4.57.6"."""
    return metadata.version("transformers")


def require_release() -> None:
    """DumpError with the remedy where transformers is too old to be listened to.

    A release newer than all that were tried may run: what kvdump relies on is measured on every model.
    """
    version = transformers_version()
    if release_of(version) < OLDEST:
        raise DumpError(f"transformers {version} cannot be recorded: kvdump needs {SPECIFIER}: {REMEDY}")


def interface_changed(error: ImportError) -> DumpError:
    """What to say where this release does not offer the attention interface under the names of others."""
    version = transformers_version()
    return DumpError(f"transformers {version} offers no attention interface ({error}): {REMEDY}")
