"""Killed at any moment, the dumper leaves no half trace under a final name, and resumes to the same trace."""

import json
import random
import signal
import subprocess
import time

import h5py
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from dumper_runs import contents, python
from tiny_model_folder import TEXT, jsonl, saved
from whole_files import check_whole

pytestmark = pytest.mark.torch

# Dumps for every line of [words, seconds until it is killed] and answers with the exit code: itself the first
# time, when everything is imported, then in a child. A child that has ended waits to be asked, so the number
# that is killed is its own.
NURSERY = """
import json, os, signal, sys, time
import torch
from kvdump import cli
torch.set_num_threads(1)
answers = sys.stdout
sys.stdout = sys.stderr = open(os.devnull, "w")
print(cli.main(json.loads(sys.stdin.readline())[0]), file=answers, flush=True)
for line in sys.stdin:
    words, kill_after_s = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = cli.main(words)
        finally:
            os._exit(code)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
"""


class Nursery:
    """Runs the dumper's command line, and kills it after a time."""

    def __init__(self, first_words):
        self.process = python(NURSERY, stdin=subprocess.PIPE)
        assert self.run(first_words) == 0

    def run(self, words, kill_after_s=None):
        """Exit code, negative when it was killed."""
        self.process.stdin.write(json.dumps([[str(word) for word in words], kill_after_s]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model, prompts = saved(folder / "llama"), jsonl(folder / "p.jsonl", TEXT, TEXT[:30], TEXT[10:])
    given = ["--model", model, "--prompts", prompts, "--generate", 4, "--ignore-eos", "--with-output"]
    return lambda output, *options: [*given, "-o", output, *options]


@pytest.fixture(scope="module")
def nursery(words, tmp_path_factory):
    nursery = Nursery(words(tmp_path_factory.mktemp("first") / "t.h5"))
    yield nursery
    nursery.process.stdin.close()
    nursery.process.wait(timeout=60)


def identity_and_contents(path):
    with h5py.File(path) as trace:
        assert trace.attrs["complete"] == 1
        identity = trace.attrs["trace_id"]
    return identity, contents(path)


def check_final(folder):
    """Every file under a final name is a whole trace."""
    check_whole(folder)
    for path in folder.rglob("*.h5"):
        with h5py.File(path) as file:
            assert file.attrs["complete"] == 1, path


@pytest.mark.parametrize(
    "kills", [8, pytest.param(100, marks=pytest.mark.slow)], ids=lambda kills: f"{kills} kills"
)
def test_a_dump_that_is_killed_again_and_again_ends_as_the_same_trace(words, nursery, tmp_path, kills):
    begun = time.monotonic()
    assert nursery.run(words(tmp_path / "whole.h5")) == 0
    whole_s = time.monotonic() - begun
    whole = identity_and_contents(tmp_path / "whole.h5")
    draw, done, number = random.Random(kills), 0, 0
    while done < kills:
        number += 1
        out = tmp_path / (f"{number}.h5" if number % 2 else f"{number}")
        for _ in range(draw.randrange(1, 8)):
            code = nursery.run(words(out, "--resume"), draw.uniform(0, whole_s))
            if code == 0:
                break
            assert code == -signal.SIGKILL
            done += 1
            check_final(tmp_path)
        assert nursery.run(words(out, "--resume")) == 0
        check_final(tmp_path)
        assert identity_and_contents(out if out.suffix else out / "index.h5") == whole
    left = [path.name for path in tmp_path.rglob("*") if path.name.endswith((".part", ".spool"))]
    assert left == []
