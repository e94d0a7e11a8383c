"""Where the program lies, and what it is given: in the package, or in a checkout."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = os.path.realpath(__file__).rpartition("/")[0]
CHECKOUT = PACKAGE.removesuffix("/apps/kvreplay")  # in an installed package the same as PACKAGE
INSIDE, BUILT = f"{PACKAGE}/bin/kvreplay", f"{CHECKOUT}/build/release/kvreplay"
USAGE = 2  # exit code, as the program's own


def program_path() -> str:
    """Path of the program: that of the package, or in a checkout the one that was built in build/release.

    Raises SystemExit with one line of advice when there is none.
    """
    for path in (INSIDE, BUILT):
        if os.access(path, os.X_OK):
            return path
    print(
        f"kvreplay: error: {INSIDE} is not there: install a wheel of kvreplay, or build the program "
        "(cmake --preset release && cmake --build build/release)",
        file=sys.stderr,
    )
    raise SystemExit(USAGE)


def sample() -> Path:
    """The sample trace: SmolLM2-135M, 1,024 tokens, of which 768 are the prompt, in 5 layers."""
    return data_folder() / "traces/samples/smollm2-135m.h5"


def data_folder() -> Path:
    """Folder with `configs/` and `traces/samples/`: in the package, or in a checkout its root."""
    from pathlib import Path

    packed = Path(PACKAGE) / "data"
    return packed if packed.is_dir() else Path(CHECKOUT)
