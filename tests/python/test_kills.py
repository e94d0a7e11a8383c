"""A run killed at any moment leaves no partial file under a final name, and resumes where it stopped."""

import random
import time

import pytest
from kvreplay_cli import replayed, start, synth
from whole_files import arrays, check_whole

WORK = ["--method", "h2o,snapkv,streaming_llm,subgen,uniform", "--budget", "24,48", "--seeds", "2"]
WORK += ["-s", "output.save=[kept, curves, outputs]", "--progress", "none", "-j", "1"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return synth(tmp_path_factory.mktemp("trace") / "t.h5", "--tokens", 224, "--prompt", 96, "--layers", 2)


@pytest.fixture(scope="module")
def undisturbed(trace, tmp_path_factory):
    """Table, arrays and seconds of an undisturbed run."""
    out = tmp_path_factory.mktemp("undisturbed")
    begun = time.monotonic()
    rows = replayed(trace, out, *WORK)
    return rows, arrays(out), time.monotonic() - begun


def kill_run(trace, out, after_s):
    """Starts and kills a run; returns whether it was killed before its end."""
    process = start("run", trace, *WORK, "-o", out)
    time.sleep(after_s)
    ended = process.poll()
    process.kill()
    process.communicate()
    assert ended in (None, 0)
    return ended is None


@pytest.mark.parametrize(
    "kills", [10, pytest.param(100, marks=pytest.mark.slow)], ids=lambda kills: f"{kills} kills"
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_numbers(trace, undisturbed, tmp_path, kills):
    rows, numbers, whole_s = undisturbed
    draw, done, folders = random.Random(kills), 0, 0
    while done < kills:
        folders += 1
        out = tmp_path / str(folders)
        for _ in range(draw.randrange(1, 8)):
            if not kill_run(trace, out, draw.uniform(0, whole_s)):
                break
            done += 1
            check_whole(out)
        assert replayed(trace, out, *WORK) == rows
        assert check_whole(out) >= 6
        assert arrays(out) == numbers


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "a,b\n1,2\n3"), ("a.csv", "a,b\n1,2\n3,4"), ("a.json", '{"a": '), ("a.h5", "\x89HDF")],
)
def test_the_check_of_these_tests_notices_a_torn_file(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises((AssertionError, ValueError, OSError)):
        check_whole(tmp_path)
    (tmp_path / name).rename(tmp_path / f"{name}.part")
    assert check_whole(tmp_path) == 0
