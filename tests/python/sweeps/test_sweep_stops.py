"""Workers that receive stop signals or are killed, alone and in a pool, lose no results."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kvreplay_cli import BINARY, kvreplay, start
from sweep_fixture import (
    CELLS,
    WAIT_S,
    comparable,
    lines,
    make_trace,
    merge,
    plan,
    started_worker,
    status,
    wait_for_cells,
    work,
    write_config,
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_worker_after_the_heads_in_work(out, whole, number):
    process = started_worker(out)
    wait_for_cells(out, 1, process)
    process.send_signal(number)
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 75
    assert "run the same command to continue" in messages
    done = status(out)["ok"]
    assert 0 < done < CELLS and done % 10 == 0  # whole heads
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_an_interrupt_ends_the_worker_at_once(out):
    process = started_worker(out)
    wait_for_cells(out, 1, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130


def test_a_time_budget_ends_the_worker_before_the_head_that_would_be_late(tmp_path):
    trace = make_trace(tmp_path / "t.h5", tokens=1024, layers=4)
    config = write_config(tmp_path, trace, "run: {audit: true}\n")  # slow enough to exceed the limit
    out = tmp_path / "out"
    assert kvreplay("run", config, "-o", tmp_path / "run").returncode == 0
    plan(config, out)
    codes = []
    while not codes or codes[-1] == 75:
        codes.append(work(out, "0/1", "--time-budget", "1s").returncode)
    assert len(codes) > 1 and codes[-1] == 0
    assert merge(out).returncode == 0
    assert comparable(out) == comparable(tmp_path / "run")


def test_two_workers_on_one_shard_waste_time_and_nothing_else(out, whole):
    workers = [started_worker(out, "--shard", "0/1") for _ in range(2)]
    for process in workers:
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    assert len(lines(out)) - CELLS == status(out)["repeated"] > 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_signal_to_the_whole_group_ends_workers_once(tmp_path):
    """Heads take long enough for a second signal to arrive while they run."""
    trace, out = make_trace(tmp_path / "t.h5", tokens=2048), tmp_path / "out"
    plan(write_config(tmp_path, trace, "run: {audit: true}\n"), out)
    words = [BINARY, "sweep", "submit", out, "--engine", "local", "--workers", "2", "--shards", "2"]
    process = subprocess.Popen(
        list(map(str, words)), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for_cells(out, 1, process)
    os.killpg(process.pid, signal.SIGTERM)
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 75
    assert messages.count(" stopped\n") == 2 and "killed" not in messages
    logs = [log.read_text() for log in out.glob("logs/*.log")]
    assert len(logs) == 2 and all("stopped by a signal" in log for log in logs)
    done = status(out)["ok"]
    assert 0 < done < CELLS and done % 10 == 0


def test_a_pool_that_is_stopped_stops_its_workers_and_continues(out, whole):
    process = start("sweep", "submit", out, "--engine", "local", "--workers", 2)
    wait_for_cells(out, 1, process)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 75
    assert "run the same command to continue" in messages
    assert 0 < status(out)["ok"] < CELLS
    result = kvreplay("sweep", "submit", out, "--engine", "local", "--workers", 2)
    assert result.returncode == 0
    assert comparable(out) == whole


def test_workers_of_a_killed_pool_end_too(out):
    process = start("sweep", "submit", out, "--engine", "local", "--workers", 2, "--shards", 2)
    wait_for_cells(out, 1, process)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    until = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{pid}/exe").exists() for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert workers and status(out)["ok"] < CELLS


def test_a_pool_restarts_the_work_of_a_killed_worker(out, whole):
    process = start("sweep", "submit", out, "--engine", "local", "--workers", 1, "--shards", 2)
    wait_for_cells(out, 1, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, messages
    assert "was killed by signal 9" in messages
    assert comparable(out) == whole
