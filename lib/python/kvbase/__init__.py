"""What all packages of kvreplay stand on: errors, progress, the engine, the frame of commands.

`kvbase._engine` is the engine as an extension module.
"""

__version__ = "0.1.0"

# In a checkout the extension module lies where cmake builds it.
if __path__[0].endswith("/lib/python/kvbase"):
    __path__.append(__path__[0].removesuffix("lib/python/kvbase") + "build/release/python/kvbase")
