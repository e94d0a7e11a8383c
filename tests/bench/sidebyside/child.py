"""Runs programs and measures their time and memory."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import Lack

CHARGE = Path(__file__).with_name("charge.py")
# Waiting threads must not use CPU time, whatever library started them.
QUIET = {
    "OMP_WAIT_POLICY": "passive",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Spent:
    """A finished program: CPU seconds (user and system), wall seconds, largest resident set, its output."""

    cpu_s: float
    wall_s: float
    peak_rss_mib: float
    stdout: str


def run(words, **environment):
    """Runs a program to its end. Raises Lack with its last output if it fails."""
    words = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(CHARGE), str(report), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | QUIET | environment,
            check=False,
        )
        used = json.loads(report.read_text()) if report.is_file() else {"code": done.returncode}
    if used["code"] != 0:
        told = "\n".join(done.stderr.strip().splitlines()[-5:])
        called = " ".join([Path(words[0]).name, *words[1:3]])
        raise Lack(f"{called} ... ended with {used['code']}: {told}")
    return Spent(used["cpu_s"], used["wall_s"], used["rss_kib"] / 1024, done.stdout)
