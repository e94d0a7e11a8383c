"""The dumper in processes of its own, and what its traces hold."""

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

# A process for every line of [source, words, a fifo for what it prints, most bytes of a file]: its number,
# and for another line its exit code. Who has ended waits to be asked, so a number that is killed is its own.
# To import torch and to meet a model takes seconds, which are spent once; to take it all apart takes another,
# so a process ends with what was registered for its exit and no more.
FORKS = """
import atexit, json, os, resource, sys, traceback
import torch
from kvdump import cli
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
# The program, as a source of such a process.
KVDUMP = "import sys; from kvdump import cli; sys.exit(cli.main(sys.argv[1:]))"


@dataclass
class Fork:
    """A process at work: its number, what it prints line by line, and in the end its exit code."""

    pid: int
    printed: IO[str]
    returncode: int | None = None


class Dumpers:
    """Python programs that use the dumper, each in a process of its own which has imported everything."""

    def __init__(self, first_words):
        """`first_words`: of a dump that is made first, so that everything has been imported."""
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
        """A Fork, which has ended when the block is left: a block reads all it prints, or kills it."""
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
    """{(prompt, layer, name): bytes} of all datasets behind a trace or its index."""
    found = {}
    with h5py.File(path) as trace:
        for prompt_id, prompt in trace["prompts"].items():
            for layer, group in prompt["layers"].items():
                found |= {(prompt_id, layer, name): data[...].tobytes() for name, data in group.items()}
    return found
