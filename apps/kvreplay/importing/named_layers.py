"""Arrays named `layers.N.q`, `layers.N.k`, `layers.N.v`, and where there are some `.out`, `.sinks`, `.q_pos`.

q [Hq, T, D], k [Hkv, T, D], v [Hkv, T, Dv]; beside them the prompt's `token_ids` and `position_ids` [T].
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..trace import LayerArrays
from .arrays import ArrayFile, as_given, fail, open_arrays
from .format_type import Found
from .sidecar import OF_LAYERS, Sidecar

NEEDED = ("q", "k", "v")
NAME = re.compile(r"layers\.(\d{1,3})\.(q|k|v|out|sinks|q_pos)")
OF_PROMPT = ("token_ids", "position_ids")


def read_named(sources: list[Path], sidecar: Sidecar, queries: list[Path]) -> Found:
    """The arrays of one file or of several, e.g. one for each layer. Raises TraceError and ConfigError."""
    if queries:
        fail(
            queries[0],
            "these queries would stand beside chunks of LMCache; here they are layers.N.q of SOURCE",
        )
    places: dict[str, ArrayFile] = {}
    for source in sources:
        file = open_arrays(source)
        for name in file:
            if name in places:
                fail(source, f"holds {name}, which {places[name].path} holds, too")
            places[name] = file
    layers = NamedLayers(places, sources[0], sidecar)
    return Found(layers, **{name: places[name][name] for name in OF_PROMPT if name in places})


class NamedLayers(Mapping[int, LayerArrays]):
    """Layers of named arrays; a layer's are read when it is asked for."""

    def __init__(self, places: dict[str, ArrayFile], source: Path, sidecar: Sidecar):
        self.places = places
        self.sidecar = sidecar
        names: dict[int, set[str]] = {}
        for name in places:
            match = NAME.fullmatch(name)
            if match:
                names.setdefault(int(match[1]), set()).add(match[2])
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
        facts = {name: self.sidecar.of_layer(name, number, self.numbers) for name in OF_LAYERS}
        return LayerArrays(
            **{name: self._array(number, name, floats=True) for name in (*NEEDED, "out")},
            **{name: self._array(number, name) for name in ("sinks", "q_pos")},
            **{name: value for name, value in facts.items() if value is not None},
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def _array(self, number: int, name: str, floats: bool = False) -> Any:
        # 7 may stand as 7 or as 007.
        for text in (str(number), f"{number:03d}", f"{number:02d}"):
            whole = f"layers.{text}.{name}"
            if whole in self.places:
                array = self.places[whole][whole]
                return as_given(array, self.sidecar) if floats else array
        return None
