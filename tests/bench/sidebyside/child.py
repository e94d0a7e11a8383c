"""Programs that are run and charged for what they use."""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import Lack

# A thread that waits must not be charged for waiting, whatever library started it.
QUIET = {
    "OMP_WAIT_POLICY": "passive",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Spent:
    """CPU seconds (user and system) and largest resident set of one finished program, and what it printed."""

    cpu_s: float
    peak_rss_mib: float
    stdout: str


def run(words, **environment):
    """Runs a program to its end. Raises Lack with its last words when it fails."""
    words = [str(word) for word in words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=os.environ | QUIET | environment
            )
        except OSError as error:
            raise Lack(f"{words[0]}: {error.strerror}") from error
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        stdout, stderr = (f.read().decode(errors="replace") for f in (out, err))
    if process.returncode != 0:
        told = "\n".join(stderr.strip().splitlines()[-5:])
        raise Lack(
            f"{Path(words[0]).name} {' '.join(words[1:3])} ... ended with {process.returncode}: {told}"
        )
    return Spent(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, stdout)
