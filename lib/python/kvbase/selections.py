"""Layers as people write them on a command line: all, 7, 0,7,15-29 or every:4."""

import re
from collections.abc import Iterable, Sequence

from kvbase.errors import ConfigError

HELP = "layers: all (default), 0,7,15-29 or every:4"


def layers_in(text: str | Iterable[int], there: Sequence[int], where: str = "layers") -> list[int]:
    """Layers that `text` selects among `there`, ascending.

    text: "all", "every:4" (layers 0, 4, 8, ...), "0,7,15-29" (a range takes its layers that exist), or
    numbers from 0. there: layers of the model, the trace or the table. Raises ConfigError where a layer is
    missing or nothing is selected.
    """
    known = sorted(int(layer) for layer in there)
    if not isinstance(text, str):
        said, chosen = ",".join(map(str, text)), {int(layer) for layer in text}
    elif text == "all":
        return known
    elif step := re.fullmatch(r"every:([1-9]\d*)", text):
        said, chosen = text, {layer for layer in known if layer % int(step[1]) == 0}
    else:
        said, chosen = text, {layer for word in text.split(",") for layer in _word(word, text, where, known)}
    if not chosen or chosen - set(known):
        raise ConfigError(f"{where} {said or '[]'}: there are layers {layer_words(known)}")
    return sorted(chosen)


def _word(word: str, text: str, where: str, known: list[int]) -> list[int]:
    """A number as it is; a range as the known layers inside it, or its end if that is beyond all of them."""
    ends = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", word)
    if not ends or int(ends[2] or ends[1]) < int(ends[1]):
        raise ConfigError(f"{where} {text}: write all, 7, 15-29, a list such as 0,7,15-29, or every:4")
    low, high = int(ends[1]), int(ends[2] or ends[1])
    if low == high or not known or high > known[-1]:
        return [high]
    return [layer for layer in known if low <= layer <= high]


def layer_words(layers: Iterable[int]) -> str:
    """Layers as text, with ranges: "0, 7, 15-29"."""
    runs: list[list[int]] = []
    for layer in sorted(int(each) for each in layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
