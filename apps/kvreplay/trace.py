"""Traces in Python: recorded queries, keys and values as numpy arrays.

    trace = kv.open("trace.h5")
    layer = trace.layer(7)
    layer.q                     # [Hq, Tq, D], read on first access
    kv.Trace.write("mine.h5", {7: (q, k, v)})

docs/formats.md lists the contents of a trace and their defaults.
"""

from kvtrace.branch import Branch
from kvtrace.layer import Layer
from kvtrace.prompt import Prompt
from kvtrace.trace import Trace, open
from kvtrace.write import LayerArrays, PromptArrays
from kvtrace.write_turns import BranchArrays

__all__ = ["Branch", "BranchArrays", "Layer", "LayerArrays", "Prompt", "PromptArrays", "Trace", "open"]
