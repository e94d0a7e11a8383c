"""Runs the recorder in separate processes, and reads its traces."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import h5py
from kvreplay_cli import ROOMS

# Reads lines of [source, words, fifo for the output, file size limit in bytes], forks a process for each, and
# prints its pid; the next line asks for its exit code. An ended process stays a zombie until then, so that a
# killed pid is never a reused one. Importing torch and a first model takes seconds, spent once. Tearing down
# the interpreter takes another second, so that a fork only runs its registered exit functions.
FORKS = """
import atexit, json, os, resource, sys, traceback
import torch
from front_door import record as cli
torch.set_num_threads(1)
answers = sys.stdout
sys.stdout = sys.stderr = open(os.devnull, "w")
print(cli.main(json.loads(sys.stdin.readline())), file=answers, flush=True)
for line in sys.stdin:
    source, words, fifo, most_bytes = json.loads(line)
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = open(fifo, "w", buffering=1)
        if most_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        sys.argv = ["-c", *words]
        code = 70
        try:
            exec(source, {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(code)
    print(child, file=answers, flush=True)
    sys.stdin.readline()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
"""
# Source of such a process: the recorder's program.
KVDUMP = "import sys; from front_door import record; sys.exit(record.main(sys.argv[1:]))"


@dataclass
class Fork:
    """A running process: its pid, its output line by line, and at the end its exit code."""

    pid: int
    printed: IO[str]
    returncode: int | None = None


class Dumpers:
    """Runs Python programs that use the recorder, each in a fork that has already imported everything."""

    def __init__(self, first_words):
        """`first_words`: arguments of a first recording, which imports everything."""
        path = os.pathsep.join([*ROOMS, os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask([str(word) for word in first_words])
        assert self.process.stdout.readline() == "0\n"

    def _ask(self, what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    @contextmanager
    def run(self, folder, source, *words, most_bytes=0):
        """A context with a Fork. The block must read all its output or kill it; the Fork ends with the
        block."""
        fifo = Path(folder) / "printed.fifo"
        os.mkfifo(fifo)
        self._ask([source, [str(word) for word in words], str(fifo), most_bytes])
        with fifo.open(errors="replace") as printed:
            fifo.unlink()
            fork = Fork(int(self.process.stdout.readline()), printed)
            try:
                yield fork
            finally:
                self._ask("how did it end?")
                fork.returncode = int(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def contents(path):
    """{(prompt, layer, name): bytes} of all datasets of a trace or of an index."""
    found = {}
    with h5py.File(path) as trace:
        for prompt_id, prompt in trace["prompts"].items():
            for layer, group in prompt["layers"].items():
                found |= {(prompt_id, layer, name): data[...].tobytes() for name, data in group.items()}
    return found
