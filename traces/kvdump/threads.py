"""A word on torch's threads where a machine is busy: they wait for each other, and spin while they do."""

import os
import sys


def advise(say):
    """One line to whoever sits before a terminal, where more runs than the machine has cores and nobody has
    said how many threads there are to be."""
    if sys.stderr.isatty() and "OMP_NUM_THREADS" not in os.environ and hasattr(os, "getloadavg"):
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > cores:
            say(
                f"load {load:.1f} on {cores} cores: torch's threads will wait for each other; "
                "a small model is faster with OMP_NUM_THREADS=1"
            )
