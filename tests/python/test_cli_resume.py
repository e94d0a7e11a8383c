"""Runs that stop: killed, interrupted, continued, extended."""

import json
import signal
import time

import pytest
from kvreplay_cli import kvreplay, published, replayed, start, synth, table

# Enough work for several seconds on one thread, so that a signal meets a run in flight.
WORK = [
    "--method",
    "h2o,window,snapkv,subgen,streaming_llm,uniform",
    "--budget",
    "64,256",
    "--seeds",
    "3",
    "--progress",
    "none",
]
WAIT_S = 60


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return synth(tmp_path_factory.mktemp("trace") / "t.h5", "--tokens", 1280, "--prompt", 640, "--layers", 3)


@pytest.fixture(scope="module")
def whole(trace, tmp_path_factory):
    """The table of an undisturbed run on one thread."""
    out = tmp_path_factory.mktemp("whole")
    return replayed(trace, out, *WORK, "-j", 1)


def stop_in_the_middle(trace, out, *signals):
    """Starts a run and sends the signals once some cells are published; gives exit code and messages."""
    process = start("run", trace, *WORK, "-j", 1, "-o", out)
    until = time.monotonic() + WAIT_S
    while published(out) < 10 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    for number in signals:
        process.send_signal(number)
    _, messages = process.communicate(timeout=WAIT_S)
    return process.returncode, messages


def test_two_threads_give_the_table_of_one(trace, whole, tmp_path):
    assert replayed(trace, tmp_path, *WORK, "-j", 2) == whole


def test_a_killed_run_continues_to_the_same_table(trace, whole, tmp_path):
    code, _ = stop_in_the_middle(trace, tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    done = published(tmp_path)
    assert 10 <= done < len(whole)
    assert replayed(trace, tmp_path, *WORK) == whole
    assert published(tmp_path) <= len(whole) + 1  # a torn line may stay behind


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]
)
def test_a_signal_saves_what_is_done(trace, whole, tmp_path, number, code):
    got, messages = stop_in_the_middle(trace, tmp_path, number)
    assert got == code
    assert "run the same command to continue" in messages
    rows = table(tmp_path)
    assert len(rows) == published(tmp_path) < len(whole)
    meta = json.loads((tmp_path / "results.meta.json").read_text())
    assert meta["cells"]["missing"] == len(whole) - len(rows)
    assert replayed(trace, tmp_path, *WORK) == whole


def test_running_again_does_nothing(trace, tmp_path):
    words = ["run", trace, "--method", "exact,window", "--budget", "64", "-o", tmp_path]
    assert kvreplay(*words).returncode == 0
    before, lines = (tmp_path / "results.csv").read_text(), published(tmp_path)
    assert kvreplay(*words).returncode == 0
    assert (tmp_path / "results.csv").read_text() == before  # times included: nothing was measured again
    assert published(tmp_path) == lines


def test_a_larger_plan_replays_only_what_is_missing(trace, tmp_path):
    words = ["run", trace, "-o", tmp_path, "--layers", "0"]
    assert kvreplay(*words, "--method", "window", "--budget", "64").returncode == 0
    result = kvreplay(*words, "--method", "window,exact", "--budget", "64,128")
    assert result.returncode == 0
    assert "9 cells, 3 done before" in result.stderr
    assert published(tmp_path) == 9


def test_a_changed_plan_is_refused_until_forced(trace, tmp_path):
    words = ["run", trace, "-o", tmp_path, "--layers", "0", "--method", "window"]
    assert kvreplay(*words, "--budget", "64").returncode == 0
    result = kvreplay(*words, "--budget", "128")
    assert result.returncode == 2
    assert "holds 3 cells of another plan" in result.stderr
    assert "--force" in result.stderr
    assert {row["budget_tokens"] for row in table(tmp_path)} == {"64"}
    assert kvreplay(*words, "--budget", "128", "--force").returncode == 0
    assert {row["budget_tokens"] for row in table(tmp_path)} == {"128"}


def test_the_record_says_how_the_numbers_were_made(trace, tmp_path):
    assert kvreplay("run", trace, "--method", "exact", "-o", tmp_path, "-j", 2).returncode == 0
    meta = json.loads((tmp_path / "results.meta.json").read_text())
    assert meta["config"]["methods"][0]["name"] == "exact"
    assert meta["jobs"] == 2
    for key in ["version", "git_commit", "hdf5", "compiler", "host", "isa", "created_utc", "command_line"]:
        assert meta[key]
    assert len(meta["traces"][0]["trace_id"]) == 64
