"""Traces in Python: recorded queries, keys and values as numpy arrays.

    trace = kvreplay.open("trace.h5")
    layer = trace.layer(7)
    layer.q                     # [Hq, Tq, D], read when it is first asked for
    kvreplay.Trace.write("mine.h5", {7: (q, k, v)})

What a trace holds and what is taken where it says nothing stands in docs/formats.md.
"""

from ..trace_io.write import LayerArrays, PromptArrays
from .layer import Layer
from .prompt import Prompt
from .trace import Trace, open

__all__ = ["Layer", "LayerArrays", "Prompt", "PromptArrays", "Trace", "open"]
