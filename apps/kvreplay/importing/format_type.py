"""Types of the import formats: how a format recognises files, and what it reads from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..trace import LayerArrays
from .sidecar import Sidecar


@dataclass(frozen=True)
class Found:
    """Content of a source: its layers, and facts of the prompt and the model, which a sidecar overrides.

    assumed: what was assumed about several files, in a line of text.
    """

    layers: Mapping[int, LayerArrays]
    token_ids: Any = None
    position_ids: Any = None
    model: str = ""
    assumed: str = ""


@dataclass(frozen=True)
class Format:
    """A format of `kvreplay import`. `recognises` gets the files; `read` gets the files, the sidecar and the
    files of queries. `what` describes the format in help texts."""

    name: str
    what: str
    recognises: Callable[[list[Path]], bool]
    read: Callable[[list[Path], Sidecar, list[Path]], Found]
