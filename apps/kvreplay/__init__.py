"""Replays recorded queries, keys and values of a model through KV-cache compression methods."""

__version__ = "0.1.0"

# In a checkout the extension module lies where cmake builds it.
if __path__[0].endswith("/apps/kvreplay"):
    __path__.append(__path__[0].removesuffix("apps/kvreplay") + "build/release/python/kvreplay")
