"""Advice about torch's threads on a busy machine, where they wait for each other and spin meanwhile."""

import os
import sys


def warn_if_busy(say):
    """Prints one line, on a terminal, if the load exceeds the cores and OMP_NUM_THREADS is not set."""
    if sys.stderr.isatty() and "OMP_NUM_THREADS" not in os.environ and hasattr(os, "getloadavg"):
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > cores:
            say(
                f"load {load:.1f} on {cores} cores: torch's threads will wait for each other; "
                "a small model is faster with OMP_NUM_THREADS=1"
            )
