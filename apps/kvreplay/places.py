"""Data that comes with kvreplay: configurations and the sample trace, of the package or of a checkout."""

from __future__ import annotations

from pathlib import Path

from kvbase.program import CHECKOUT, ROOT


def sample() -> Path:
    """The sample trace: SmolLM2-135M, 640 prompt tokens and 64 after them, in 10 layers."""
    return data_folder() / "traces/samples/smollm2-135m.h5"


def data_folder() -> Path:
    """Folder with `configs/` and `traces/samples/`: in the package, or in a checkout its root."""
    packed = Path(ROOT) / "kvreplay/data"
    return packed if packed.is_dir() else Path(CHECKOUT)
