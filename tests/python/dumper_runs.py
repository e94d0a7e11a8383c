"""The dumper in processes of its own, and what its traces hold."""

import os
import subprocess
import sys
from pathlib import Path

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


def contents(path):
    """{(prompt, layer, name): bytes} of all datasets behind a trace or its index."""
    found = {}
    with h5py.File(path) as trace:
        for prompt_id, prompt in trace["prompts"].items():
            for layer, group in prompt["layers"].items():
                found |= {(prompt_id, layer, name): data[...].tobytes() for name, data in group.items()}
    return found
