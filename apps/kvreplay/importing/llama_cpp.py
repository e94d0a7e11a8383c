"""State files of llama.cpp: recognised only to refuse them with the reason."""

from pathlib import Path
from typing import NoReturn

from .arrays import fail
from .format_type import Format
from .sidecar import Sidecar

# A 32-bit number that spells "ggsn" (a session) or "ggsq" (a sequence); in little-endian files, backwards.
MAGICS = (b"ggsn", b"nsgg", b"ggsq", b"qsgg")


def _recognises(sources: list[Path]) -> bool:
    try:
        with sources[0].open("rb") as file:
            return file.read(4) in MAGICS
    except OSError:
        return False


def _refuse(sources: list[Path], _: Sidecar, __: list[Path]) -> NoReturn:
    fail(
        sources[0],
        "is a state file of llama.cpp, which holds keys and values but no queries, so nothing "
        "can be replayed. "
        "Record the model with kvreplay record, which reads GGUF files (docs/record_your_model.md)",
    )


FORMAT = Format(
    name="llama.cpp",
    what="refused: its state files hold no queries",
    recognises=_recognises,
    read=_refuse,
)
