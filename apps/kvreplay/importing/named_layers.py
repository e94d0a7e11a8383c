"""Arrays named `layers.N.q`, `layers.N.k`, `layers.N.v`, and optionally `.out`, `.sinks`, `.q_pos`.

q [Hq, T, D], k [Hkv, T, D], v [Hkv, T, Dv]; optionally the prompt's `token_ids` and `position_ids` [T].
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..trace import LayerArrays
from .arrays import ArrayFile, decoded_array, fail, open_arrays
from .format_type import Found, FoundPrompt
from .sidecar import Sidecar

NEEDED = ("q", "k", "v")
NAME = re.compile(r"layers\.(\d{1,3})\.(q|k|v|out|sinks|q_pos)")
OF_PROMPT = ("token_ids", "position_ids")
MASK = "attention_mask"


def read_named(sources: list[Path], sidecar: Sidecar, queries: list[Path]) -> Found:
    """Reads one file, or several, for example one per layer. Raises TraceError and ConfigError."""
    if queries:
        fail(
            queries[0],
            "separate files of queries belong to LMCache's chunks and vLLM's saves; here queries are "
            "layers.N.q in SOURCE",
        )
    places: dict[str, ArrayFile] = {}
    for source in sources:
        file = open_arrays(source)
        for name in file:
            if name in places:
                fail(source, f"holds {name}, which {places[name].path} also holds")
            places[name] = file
    layers = NamedLayers(places, sources[0], sidecar)
    facts = {name: places[name][name] for name in OF_PROMPT if name in places}
    return Found([FoundPrompt(layers, **facts)])


class NamedLayers(Mapping[int, LayerArrays]):
    """{number: LayerArrays} of named arrays; each layer is read on access."""

    def __init__(self, places: dict[str, ArrayFile], source: Path, sidecar: Sidecar):
        self.places = places
        self.sidecar = sidecar
        names: dict[int, set[str]] = {}
        for name in places:
            match = NAME.fullmatch(name)
            if match:
                names.setdefault(int(match[1]), set()).add(match[2])
            elif name == MASK:
                fail(source, _masked(places[name][name]))
            elif name not in OF_PROMPT:
                fail(
                    source,
                    f"holds {name}. Names are layers.N.q, .k, .v, .out, .sinks, .q_pos with N from 0, "
                    "token_ids and position_ids: rename it or leave it out",
                )
        if not names:
            fail(source, "holds no layers. Name their arrays layers.0.q, layers.0.k, layers.0.v and so on")
        for number, there in sorted(names.items()):
            missing = [name for name in NEEDED if name not in there]
            if missing:
                fail(source, f"layers.{number}.{missing[0]} is missing. A layer needs q, k and v")
        self.numbers = sorted(names)

    def __getitem__(self, number: int) -> LayerArrays:
        if number not in self.numbers:
            raise KeyError(number)
        return LayerArrays(
            **{name: self._array(number, name, floats=True) for name in (*NEEDED, "out")},
            **{name: self._array(number, name) for name in ("sinks", "q_pos")},
            **self.sidecar.facts_of(number, self.numbers),
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def _array(self, number: int, name: str, floats: bool = False) -> Any:
        # Layer 7 may be written 7, 07 or 007.
        for text in (str(number), f"{number:03d}", f"{number:02d}"):
            whole = f"layers.{text}.{name}"
            if whole in self.places:
                array = self.places[whole][whole]
                return decoded_array(array, self.sidecar) if floats else array
        return None


def _masked(mask: Any) -> str:
    """What to do about a mask: rows of padding would be replayed as tokens."""
    padding = int((np.asarray(mask) == 0).sum())
    if not padding:
        return f"holds {MASK}, which is 1 everywhere: leave it out"
    return (
        f"holds {MASK}, which masks {padding} tokens of padding. They would count as tokens: cut their rows "
        "from q, k, v, token_ids and position_ids, give each prompt of a batch a file of its own, and then "
        "leave the mask out"
    )
