"""The recorder, killed at any moment, leaves no partial trace under a final name, and resumes to an equal
trace."""

import os
import random
import signal
import time

import h5py
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from dumper_runs import KVDUMP, contents
from tiny_model_folder import TEXT, jsonl, saved
from whole_files import check_whole

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model, prompts = saved(folder / "llama"), jsonl(folder / "p.jsonl", TEXT, TEXT[:30], TEXT[10:])
    given = ["--model", model, "--prompts", prompts, "--generate", 4, "--ignore-eos", "--with-output"]
    return lambda output, *options: [*given, "-o", output, *options]


@pytest.fixture
def kvdump(dumpers, tmp_path):
    """kvdump(words, kill_after_s=None): runs the recorder; the exit code is negative if it was killed."""

    def run(words, kill_after_s=None):
        with dumpers.run(tmp_path, KVDUMP, *words) as process:
            if kill_after_s is None:
                process.printed.read()
            else:
                time.sleep(kill_after_s)
                os.kill(process.pid, signal.SIGKILL)
        return process.returncode

    return run


def identity_and_contents(path):
    with h5py.File(path) as trace:
        assert trace.attrs["complete"] == 1
        identity = trace.attrs["trace_id"]
    return identity, contents(path)


def check_final(folder):
    """Checks that every file under a final name is a complete trace."""
    check_whole(folder)
    for path in folder.rglob("*.h5"):
        with h5py.File(path) as file:
            assert file.attrs["complete"] == 1, path


@pytest.mark.parametrize(
    "kills", [8, pytest.param(100, marks=pytest.mark.slow)], ids=lambda kills: f"{kills} kills"
)
def test_a_dump_that_is_killed_again_and_again_ends_as_the_same_trace(words, kvdump, tmp_path, kills):
    begun = time.monotonic()
    assert kvdump(words(tmp_path / "whole.h5")) == 0
    whole_s = time.monotonic() - begun
    whole = identity_and_contents(tmp_path / "whole.h5")
    draw, done, number = random.Random(kills), 0, 0
    while done < kills:
        number += 1
        out = tmp_path / (f"{number}.h5" if number % 2 else f"{number}")
        for _ in range(draw.randrange(1, 8)):
            code = kvdump(words(out, "--resume"), draw.uniform(0, whole_s))
            if code == 0:
                break
            assert code == -signal.SIGKILL
            done += 1
            check_final(tmp_path)
        assert kvdump(words(out, "--resume")) == 0
        check_final(tmp_path)
        assert identity_and_contents(out if out.suffix else out / "index.h5") == whole
    left = [path.name for path in tmp_path.rglob("*") if path.name.endswith((".part", ".spool"))]
    assert left == []
