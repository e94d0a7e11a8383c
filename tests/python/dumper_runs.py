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
import kvdump


def python(source, *words, **options):
    """A Python program that finds kvdump, on one thread; `options` are those of Popen."""
    path = os.pathsep.join([str(Path(kvdump.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", source, *words],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


# A process for every line of [source, words, a fifo for what it prints, most bytes of a file]: its number,
# and in the end its exit code. To import torch and to meet a model takes seconds, which are spent once.
FORKS = """
import json, os, resource, sys
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
        code = 70
        sys.stdout = sys.stderr = open(fifo, "w", buffering=1)
        if most_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        sys.argv = ["-c", *words]
        try:
            exec(source, {"__name__": "__main__"})
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(child, file=answers, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
"""


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
        self.process = python(FORKS, stdin=subprocess.PIPE)
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
            yield fork
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
