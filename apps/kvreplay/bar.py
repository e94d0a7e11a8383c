"""The progress of a replay, on a terminal or in a notebook."""

import sys
from types import TracebackType
from typing import Any


class Bar:
    """A bar of tqdm, if one is wanted: shown None means on a terminal or in a notebook."""

    def __init__(self, shown: bool | None):
        self._shown = watched() if shown is None else shown
        self._bar: Any = None
        self._failed = 0

    def start(self, cells: int) -> None:
        """The plan is made: so many cells."""
        if self._shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=cells, unit="cell", desc="replay")

    def advance(self, failed: bool) -> None:
        """A cell has come."""
        self._failed += failed
        if self._bar is not None:
            if failed:
                self._bar.set_postfix(failed=self._failed)
            self._bar.update()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


def watched() -> bool:
    """Whether somebody looks: stderr is a terminal, or this is a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
