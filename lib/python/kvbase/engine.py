"""The engine as an extension module, `kvbase._engine`. ConfigError where it was not built."""

from .errors import ConfigError

try:
    from . import _engine
except ImportError as error:
    raise ConfigError(
        f"the engine as a Python module is missing ({error}): pip install kvreplay, in a checkout build with "
        "-DKVREPLAY_PYTHON=ON"
    ) from error

__all__ = ["_engine"]
