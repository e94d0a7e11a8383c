"""Replays recorded queries, keys and values of a model through KV-cache compression methods.

    import kvreplay as kv

    run = kv.replay(q, k, v, prefill=768, methods=["h2o", "snapkv"], budgets=[64, 256, "10%"])
    run.summary()                  # mean errors with confidence intervals
    run.compare("20%")             # which method has the lowest error at equal bytes
    kv.plot.error_vs_budget(run)   # a matplotlib Axes

`help(kvreplay.replay)` lists all arguments. Importing kvreplay is cheap: each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# {name: module that defines it}
_HOMES = {
    **dict.fromkeys(("replay",), "replaying"),
    **dict.fromkeys(("live", "Live"), "live_run"),
    **dict.fromkeys(("stepping", "Stepping"), "stepwise"),
    **dict.fromkeys(("Run",), "run"),
    **dict.fromkeys(("Answer", "compare"), "comparing"),
    **dict.fromkeys(("predict",), "predicting"),
    **dict.fromkeys(("scorer", "Policy"), "own_methods"),
    **dict.fromkeys(("Prompt", "Tokens"), "shown"),
    **dict.fromkeys(("methods", "formats", "describe", "columns"), "method_list"),
    **dict.fromkeys(("Trace", "Layer", "open"), "trace"),
    **dict.fromkeys(("read_back", "ReadBack"), "reading_back"),
    **dict.fromkeys(("record", "recorder"), "recording"),
    **dict.fromkeys(("data_folder", "sample"), "places"),
    **dict.fromkeys(
        (
            *("KvreplayError", "KvreplayWarning", "ConfigError", "TraceError", "ResultsError", "DeviceError"),
            "OutputError",
        ),
        "kvbase.errors",
    ),
}
_MODULES = ("plot", "importing")

__all__ = [
    "Answer",
    "ConfigError",
    "DeviceError",
    "KvreplayError",
    "KvreplayWarning",
    "Layer",
    "Live",
    "OutputError",
    "Policy",
    "Prompt",
    "ReadBack",
    "ResultsError",
    "Run",
    "Stepping",
    "Tokens",
    "Trace",
    "TraceError",
    "__version__",
    "columns",
    "compare",
    "data_folder",
    "describe",
    "formats",
    "importing",
    "live",
    "methods",
    "open",
    "plot",
    "predict",
    "read_back",
    "record",
    "recorder",
    "replay",
    "sample",
    "scorer",
    "stepping",
]

TYPE_CHECKING = False  # not imported from `typing`: the command line loads this module and must start fast
if TYPE_CHECKING:
    from typing import Any

    from kvbase.errors import (
        ConfigError,
        DeviceError,
        KvreplayError,
        KvreplayWarning,
        OutputError,
        ResultsError,
        TraceError,
    )

    from . import importing, plot
    from .comparing import Answer, compare
    from .live_run import Live, live
    from .method_list import columns, describe, formats, methods
    from .own_methods import Policy, scorer
    from .places import data_folder, sample
    from .predicting import predict
    from .reading_back import ReadBack, read_back
    from .recording import record, recorder
    from .replaying import replay
    from .run import Run
    from .shown import Prompt, Tokens
    from .stepwise import Stepping, stepping
    from .trace import Layer, Trace, open


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if home := _HOMES.get(name):
        return getattr(import_module(home if "." in home else f".{home}", __name__), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def __dir__() -> list[str]:
    return sorted(__all__)
