"""What a format is: how it is recognised, and what reading it gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..trace import LayerArrays
from .sidecar import Sidecar


@dataclass(frozen=True)
class Found:
    """What a source holds: its layers, and what it says of the prompt and the model where no sidecar does."""

    layers: Mapping[int, LayerArrays]
    token_ids: Any = None
    position_ids: Any = None
    model: str = ""


@dataclass(frozen=True)
class Format:
    """A format of `import`. `recognises` looks at files; `read` takes files, sidecar and files of queries."""

    name: str
    what: str
    recognises: Callable[[list[Path]], bool]
    read: Callable[[list[Path], Sidecar, list[Path]], Found]
