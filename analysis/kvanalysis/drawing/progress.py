"""Progress of drawing figures, shown on stderr."""

import sys
import time

QUIET_S = 1.0  # without a terminal: silent at the start, and between two lines


class DrawingProgress:
    """Called with (number from 1, how many, name) before each figure is drawn.

    On a terminal one line is overwritten; elsewhere a line is written only if QUIET_S have passed since the
    last one, so that fast drawing prints nothing.
    """

    def __init__(self, stream=None, clock=time.monotonic):
        self.stream = stream or sys.stderr
        self.clock = clock
        self.terminal = self.stream.isatty()
        self.told = clock()

    def __call__(self, number, total, name):
        line = f"drawing figure {number} of {total}: {name}"
        if self.terminal:
            self.stream.write(f"\r\033[K{line}")
        elif self.clock() - self.told >= QUIET_S:
            self.told = self.clock()
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def close(self):
        """Erases the line on a terminal."""
        if self.terminal:
            self.stream.write("\r\033[K")
            self.stream.flush()
