"""Progress on stderr: one redrawn line on a terminal, a plain line now and then elsewhere."""

import sys
import time

PLAIN_INTERVAL_S = 30
BAR_INTERVAL_S = 0.1
BAR_WIDTH = 30


class Progress:
    """Counts `total` steps of one stage; `step` after each, `close` at the end."""

    def __init__(self, label, total, stream=None):
        self.label = label
        self.total = max(total, 1)
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.done = 0
        self.started = self.shown = time.monotonic()

    def step(self, note=""):
        """One step further; `note` says where (for example a layer)."""
        self.done += 1
        now = time.monotonic()
        if now - self.shown >= (BAR_INTERVAL_S if self.terminal else PLAIN_INTERVAL_S):
            self.shown = now
            self._show(note)

    def close(self):
        """Show the last state and end the line."""
        self._show(f"{time.monotonic() - self.started:.1f} s")
        if self.terminal:
            self.stream.write("\n")

    def _show(self, note):
        count = f"{self.label}: {self.done}/{self.total} {note}".rstrip()
        if self.terminal:
            filled = min(BAR_WIDTH * self.done // self.total, BAR_WIDTH)
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            self.stream.write(f"\r\033[K[{bar}] {count}")
        else:
            self.stream.write(count + "\n")
        self.stream.flush()


class NoProgress:
    """In place of Progress where nobody wants to see any."""

    def step(self, note=""):
        """Says nothing."""

    def close(self):
        """Says nothing."""
