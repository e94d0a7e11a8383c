"""The old name of the recorder, for one release: kvreplay has kv.record, and kvrecord the rest."""

import warnings

from kvbase.errors import ConfigError as UsageError
from kvbase.errors import KvreplayError as DumpError

__all__ = ["DumpError", "UsageError", "add_text", "record", "record_texts"]

HOMES = {"record": "recorder", "record_texts": "recording", "add_text": "add_text"}

warnings.warn(
    "kvdump is now kvrecord: use kvreplay.record, or kvrecord.record around a model that runs. The next "
    "release drops the name kvdump",
    FutureWarning,
    stacklevel=2,
)


def __getattr__(name):
    if name not in HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib import import_module

    return getattr(import_module(f"kvrecord.{HOMES[name]}"), name)
