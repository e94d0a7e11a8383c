"""Turns queries, keys and values from other programs into traces: `import_file`, or `kvreplay import`.

    from kvreplay.importing import import_file
    trace = import_file("dump.safetensors", "mine.h5", sidecar={"n_prompt": 768})

docs/bring_your_own_numbers.md says what a source must hold.
"""

from .run import import_file

__all__ = ["import_file"]
