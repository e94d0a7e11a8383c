"""Progress on stderr: one redrawn line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, TextIO

PLAIN_INTERVAL_S = 30
BAR_INTERVAL_S = 0.1
BAR_WIDTH = 30


class Progress:
    """Counts `total` steps of one stage: call `step` after each, `close` at the end."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None):
        self.label = label
        self.total = max(total, 1)
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.done = 0
        self.started = self.shown = time.monotonic()

    def step(self, note: str = "") -> None:
        """Counts one step. note: what was done, for example a layer."""
        self.done += 1
        now = time.monotonic()
        if now - self.shown >= (BAR_INTERVAL_S if self.terminal else PLAIN_INTERVAL_S):
            self.shown = now
            self._show(note)

    def close(self) -> None:
        """Shows the last state and ends the line."""
        self._show(f"{time.monotonic() - self.started:.1f} s")
        if self.terminal:
            self.stream.write("\n")

    def _show(self, note: str) -> None:
        count = f"{self.label}: {self.done}/{self.total} {note}".rstrip()
        if self.terminal:
            filled = min(BAR_WIDTH * self.done // self.total, BAR_WIDTH)
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            self.stream.write(f"\r\033[K[{bar}] {count}")
        else:
            self.stream.write(count + "\n")
        self.stream.flush()


class NoProgress:
    """Stands in for Progress and shows nothing."""

    def step(self, note: str = "") -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Shows nothing."""


class Bar:
    """A tqdm bar over the cells of a replay. shown: None shows it on a terminal or in a notebook only."""

    def __init__(self, shown: bool | None):
        self._shown = watched() if shown is None else shown
        self._bar: Any = None
        self._failed = 0

    def start(self, cells: int) -> None:
        """Begins a bar of `cells` cells, or adds them to it."""
        if self._bar is not None:
            self._bar.total += cells
            self._bar.refresh()
        elif self._shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=cells, unit="cell", desc="replay")

    def advance(self, failed: bool) -> None:
        """Counts one finished or failed cell."""
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
    """Whether a person watches: stderr is a terminal, or this is a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
