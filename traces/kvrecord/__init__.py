"""Records queries, keys and values of a Hugging Face decoder into a trace file (HDF5, schema 1).

Command line: `kvreplay record --help`. For a loaded model: `kvreplay.record(model, ["a text"], "t.h5")`, or
`record_texts` of this package. Around your own calls of the model:

    with record(model, "t.h5"):
        model.generate(...)
"""

from typing import TYPE_CHECKING

from kvbase.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from .recorder import record
    from .recording import record_texts

__version__ = "0.1.0"
__all__ = ["ConfigError", "TraceError", "__version__", "record", "record_texts"]

_HOMES = {"record": ".recorder", "record_texts": ".recording"}


def __getattr__(name):
    # torch is imported only for recording: prompts, sizes and files work without it.
    if name not in _HOMES:
        raise AttributeError(name)
    import importlib

    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__():
    return sorted({*globals(), *__all__})
