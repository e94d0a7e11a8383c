"""Types of the import formats: how a format recognises files, and what it reads from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..trace import LayerArrays
from .sidecar import Sidecar


@dataclass(frozen=True)
class FoundPrompt:
    """One prompt of a source: its layers, and facts of it, which a sidecar overrides. None: not held."""

    layers: Mapping[int, LayerArrays]
    token_ids: Any = None
    position_ids: Any = None
    n_prompt: int | None = None


@dataclass(frozen=True)
class Found:
    """Content of a source: its prompts in order, and the model's name.

    assumed: what was assumed about the source, each in a line of text.
    knows_scaling: the source says the scaling of its layers, so that the default is no assumption.
    """

    prompts: list[FoundPrompt]
    model: str = ""
    assumed: tuple[str, ...] = ()
    knows_scaling: bool = False


@dataclass(frozen=True)
class Format:
    """A format of `kvreplay import`. `recognises` gets the files; `read` gets the files, the sidecar and the
    files of queries. `what` describes the format in help texts."""

    name: str
    what: str
    recognises: Callable[[list[Path]], bool]
    read: Callable[[list[Path], Sidecar, list[Path]], Found]
