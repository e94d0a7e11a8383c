"""Workers that fail, die, are stopped, or find what they did not expect: nothing is lost."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from kvreplay_cli import BINARY, kvreplay, start, table
from sweep_fixture import (
    CELLS,
    comparable,
    lines,
    make_trace,
    merge,
    plan,
    planned,
    rewritten,
    status,
    table_of_one_run,
    work,
    write_config,
)

WAIT_S = 60


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return make_trace(tmp_path_factory.mktemp("trace") / "t.h5")


@pytest.fixture(scope="module")
def whole(trace, tmp_path_factory):
    return table_of_one_run(trace, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def out(trace, tmp_path):
    return planned(trace, tmp_path)


def started_worker(out, *words):
    return start("sweep", "work", out, "-j", 1, "--progress", "none", *words)


def wait_for_cells(out, count, process):
    until = time.monotonic() + WAIT_S
    while status(out)["ok"] < count and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


def damage(trace, layer, kv_head):
    """A number that is none, as a broken disk may give one."""
    with h5py.File(trace, "r+") as file:
        keys = file[f"prompts/synthetic/layers/{layer:03}/k"]
        tokens = keys[kv_head]
        was = tokens.copy()
        tokens[5] = np.nan
        keys[kv_head] = tokens
    return was


# ---- failures


@pytest.fixture
def damaged(trace, tmp_path):
    """A sweep over a copy of the trace in which kv head 2 of layer 1 cannot be read."""
    copy = shutil.copy(trace, tmp_path / "damaged.h5")
    damage(copy, 1, 2)
    plan(write_config(tmp_path, copy), tmp_path / "out")
    return tmp_path / "out", copy


def work_until_parked(out):
    """A worker tries a cell once; three workers are what it has."""
    for _ in range(3):
        assert work(out, "0/1").returncode == 1


def test_a_head_that_cannot_be_read_fails_its_cells_three_times_and_blocks_no_other(damaged):
    out, _ = damaged
    assert work(out, "0/1").returncode == 1
    assert status(out).items() >= {"ok": 190, "failed": 10, "parked": 0, "complete": False}.items()
    assert merge(out).returncode == 75
    for _ in range(2):
        assert work(out, "0/1").returncode == 1
    assert status(out).items() >= {"ok": 190, "failed": 0, "parked": 10, "complete": True}.items()
    failures = [line for line in lines(out, "attempts") if "key" in line]
    assert len(failures) == 30
    assert all("/k" in line["row"]["error"] and line["host"] for line in failures)
    begun = len(lines(out, "attempts")) - len(failures)
    assert work(out, "0/1").returncode == 1
    assert len(lines(out, "attempts")) == len(failures) + begun  # nothing was begun again


def test_a_table_with_parked_cells_has_their_errors(damaged):
    out, _ = damaged
    work_until_parked(out)
    result = merge(out)
    assert result.returncode == 1
    assert "cells failed: h2o: " in result.stderr
    failed = [row for row in table(out) if row["status"] == "failed"]
    assert {(row["layer"], row["kv_head"]) for row in failed} == {("1", "2")}
    assert all(row["error"] and not row["rel_err_out_mean"] for row in failed)
    assert len(table(out)) == CELLS


def test_parked_cells_have_one_more_attempt_when_somebody_asks(damaged, whole, trace):
    out, copy = damaged
    work_until_parked(out)
    assert work(out, "0/1", "--retry-parked").returncode == 1
    assert status(out)["parked"] == 10
    shutil.copy(trace, copy)
    assert work(out, "0/1", "--retry-parked").returncode == 0
    assert status(out).items() >= {"ok": CELLS, "parked": 0}.items()
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_pool_tries_failed_cells_in_each_of_its_rounds(damaged):
    out, _ = damaged
    result = kvreplay("sweep", "submit", out, "--engine", "local", "--workers", 2, "--shards", 5)
    assert result.returncode == 1
    assert status(out).items() >= {"ok": 190, "parked": 10}.items()
    assert [line.count("of 5 shards left") for line in result.stderr.splitlines()].count(1) == 3


def test_a_head_that_cannot_be_read_fails_those_who_share_its_budget_and_nobody_else(damaged, tmp_path):
    _, copy = damaged
    config = write_config(tmp_path, copy)
    config.write_text(config.read_text().replace("[h2o, snapkv, streaming_llm, uniform]", "[adakv, h2o]"))
    plan(config, tmp_path / "shared")
    assert work(tmp_path / "shared", "0/1").returncode == 1
    assert merge(tmp_path / "shared", "--partial").returncode == 1
    failed = {
        (row["method"], row["layer"], row["kv_head"])
        for row in table(tmp_path / "shared")
        if row["status"] == "failed"
    }
    assert failed == {("adakv", "1", str(h)) for h in range(4)} | {("h2o", "1", "2")}


def test_a_stale_cell_that_fails_is_tried_once_and_keeps_its_old_result(trace, tmp_path):
    copy = shutil.copy(trace, tmp_path / "t.h5")
    plan(write_config(tmp_path, copy), tmp_path / "out")
    out = tmp_path / "out"
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    shard.write_text("".join(rewritten(line, build="0.0 old") + "\n" for line in lines(out)))
    damage(copy, 1, 2)
    assert work(out, "0/1", "--stale").returncode == 1
    assert status(out).items() >= {"ok": CELLS, "stale": 10}.items()


def test_a_head_that_killed_its_worker_comes_last(out):
    line = '"begun":0,"host":"other.1"'
    sealed = rewritten({"begun": 0, "host": "other.1"})
    assert line in sealed
    (out / "attempts").mkdir()
    (out / "attempts" / "shard-0.other.1.jsonl").write_text(sealed + "\n")
    assert work(out, "0/1").returncode == 0
    cells = lines(out)
    assert [(c["row"]["layer"], c["row"]["kv_head"]) for c in (cells[0], cells[-1])] == [(0, 1), (0, 0)]


# ---- stops


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
    trace = make_trace(tmp_path / "t.h5", tokens=1536)
    config = write_config(tmp_path, trace, "run: {audit: true}\n")  # slow enough to be late
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


def test_a_signal_to_the_whole_group_ends_workers_once(out):
    words = [BINARY, "sweep", "submit", out, "--engine", "local", "--workers", "2", "--shards", "2"]
    process = subprocess.Popen(
        list(map(str, words)), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for_cells(out, 1, process)
    os.killpg(process.pid, signal.SIGTERM)
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 75
    assert messages.count(" stopped\n") == 2 and "killed" not in messages
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


def test_a_pool_starts_again_what_a_killed_worker_left(out, whole):
    process = start("sweep", "submit", out, "--engine", "local", "--workers", 1, "--shards", 2)
    wait_for_cells(out, 1, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, messages
    assert "was killed by signal 9" in messages
    assert comparable(out) == whole


# ---- what is not as it was


def test_a_changed_trace_under_the_same_path_is_refused_and_what_is_done_stays(trace, whole, tmp_path):
    copy, out = shutil.copy(trace, tmp_path / "t.h5"), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    assert work(out, "0/2").returncode == 0
    make_trace(copy, seed=1)
    result = work(out, "1/2")
    assert result.returncode == 3
    assert "is another trace than the one that was planned" in result.stderr
    assert status(out).items() >= {"ok": 100, "missing": 100, "failed": 0}.items()
    shutil.copy(trace, copy)
    assert work(out, "1/2").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_pool_ends_at_what_another_round_will_not_mend_and_says_what_it_was(trace, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    copy.unlink()
    result = kvreplay("sweep", "submit", out, "--engine", "local", "--workers", 2, "--shards", 2)
    assert result.returncode == 3
    assert result.stderr.count("shards left") == 1
    assert result.stderr.count(f"no trace {copy}") == 2


def test_another_prompt_under_the_same_path_is_told_as_another_trace(trace, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    with h5py.File(copy, "r+") as file:
        file.move("prompts/synthetic", "prompts/renamed")
        file.attrs["trace_id"] = "f" * 64
    result = work(out, "0/1")
    assert result.returncode == 3
    assert "is another trace than the one that was planned" in result.stderr


def test_a_trace_that_has_moved_is_planned_again_and_nothing_is_repeated(trace, whole, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    assert work(out, "0/2").returncode == 0
    moved = copy.rename(tmp_path / "moved.h5")
    gone = work(out, "1/2")
    assert gone.returncode == 3
    assert "t.h5" in gone.stderr
    assert "(100 done)" in plan(write_config(tmp_path, moved), out)
    assert work(out, "1/2").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_trace_that_is_missing_blocks_no_other(trace, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    other = make_trace(tmp_path / "other.h5", tokens=128, seed=2)
    config = write_config(tmp_path, f"{copy}, {other}")
    plan(config, out)
    copy.unlink()
    result = work(out, "0/1")
    assert result.returncode == 3
    assert status(out).items() >= {"ok": CELLS, "missing": CELLS, "failed": 0}.items()


def test_a_changed_result_line_is_replayed(out, whole):
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    text = shard.read_text()
    at = text.index('"rel_err_out_mean":0.') + len('"rel_err_out_mean":0.')
    shard.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    assert status(out).items() >= {"damaged": 1, "missing": 1}.items()
    refused = merge(out)
    assert refused.returncode == 75
    assert "1 damaged lines" in refused.stderr
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_torn_last_line_does_not_exist(out, whole):
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    shard.write_bytes(shard.read_bytes()[:-100])
    assert status(out).items() >= {"damaged": 0, "missing": 1}.items()
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_changed_plan_is_refused_by_everybody(out):
    (file,) = out.glob("plan-*.jsonl")
    text = file.read_text()
    file.chmod(0o644)
    file.write_text(text.replace('"budget_tokens":64', '"budget_tokens":65', 1))
    for words in [["work", out], ["status", out], ["merge", out], ["submit", out, "--engine", "local"]]:
        result = kvreplay("sweep", *words)
        assert result.returncode == 2
        assert "changed or damaged" in result.stderr and "sweep plan" in result.stderr


SEALED_BUT_ABSURD = {
    "units beyond the cells": lambda h: h["units"][-1].__setitem__(5, 10**6),
    "a count below zero": lambda h: h["units"][0].__setitem__(5, -1),
    "a gap between units": lambda h: h["units"][1].__setitem__(4, 0),
    "a trace that is not there": lambda h: h["units"][0].__setitem__(0, 7),
    "a cost that is no number": lambda h: h["units"][0].__setitem__(6, "much"),
    "no units": lambda h: h.pop("units"),
    "no configuration": lambda h: h.pop("config"),
    "a device that is no text": lambda h: h["config"]["run"].__setitem__("device", 3),
    "another version": lambda h: h.__setitem__("kvreplay_plan", 99),
}


@pytest.mark.parametrize("what", SEALED_BUT_ABSURD)
def test_a_plan_that_is_sealed_but_absurd_is_refused(out, what):
    (file,) = out.glob("plan-*.jsonl")
    header, *cells = file.read_text().splitlines()
    content = json.loads(header)
    SEALED_BUT_ABSURD[what](content)
    file.chmod(0o644)
    file.write_text("\n".join([rewritten(content), *cells]) + "\n")
    for words in [["work", out], ["status", out], ["merge", out, "--partial"]]:
        result = kvreplay("sweep", *words, timeout=20)
        assert result.returncode == 2, result.stderr
        assert file.name in result.stderr and "sweep plan" in result.stderr


@pytest.mark.parametrize("changed", [{"row": 3}, {"row": {}}, {"row": {"key": "k" + "0" * 16}}])
def test_a_result_line_that_is_sealed_but_absurd_is_told_with_its_file(out, changed):
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    first, *others = lines(out)
    shard.write_text("\n".join([rewritten(first, **changed), *map(rewritten, others)]) + "\n")
    result = merge(out)
    assert result.returncode == 2
    assert shard.name in result.stderr


# ---- the machine


def test_a_full_disk_ends_the_worker_and_what_is_published_is_kept(out, whole):
    def little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, resource.RLIM_INFINITY))

    result = subprocess.run(
        [BINARY, "sweep", "work", out, "-j", "1", "--progress", "none"],
        preexec_fn=little_room,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert result.returncode == 2
    assert "cannot be written" in result.stderr and "is kept" in result.stderr
    assert 0 < status(out)["ok"] < CELLS
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_full_disk_while_merging_leaves_no_half_table(out):
    assert work(out, "0/1").returncode == 0

    def little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))

    words = [BINARY, "sweep", "merge", out]
    result = subprocess.run(words, preexec_fn=little_room, capture_output=True, text=True, timeout=WAIT_S)
    assert result.returncode == 2
    assert "results.csv" in result.stderr
    assert not [p for p in out.iterdir() if "results" in p.name]


def as_nobody():
    """Root may write anywhere; so the test becomes somebody who may not."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def readable_by_all(path):
    for folder in [path, *path.parents]:
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o555)


@pytest.mark.parametrize(
    "words", [["work", "OUT"], ["merge", "OUT", "--partial"], ["plan", "CONFIG", "-o", "OUT"]]
)
def test_an_output_directory_that_cannot_be_written_is_told(trace, tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("readonly")
    config, out = write_config(folder, trace), folder / "out"
    plan(config, out)
    for logs in ["shards", "attempts"]:
        (out / logs).mkdir()
        (out / logs).chmod(0o555)
    out.chmod(0o555)
    for path in [out, config.parent, Path(trace).parent]:
        readable_by_all(path)
    places = {"OUT": out, "CONFIG": config}
    binary = shutil.copy(BINARY, folder / "kvreplay")  # a checkout need not be readable by all
    try:
        result = subprocess.run(
            [binary, "sweep", *[places.get(word, word) for word in words]],
            preexec_fn=as_nobody,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    finally:
        out.chmod(0o755)
    assert result.returncode == 2
    assert str(out) in result.stderr and "-o" in result.stderr
    assert "ermission denied" in result.stderr or "not writable" in result.stderr


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static const long then = 86400L * 365 * 5;  // 1974
time_t time(time_t *out) { if (out) *out = then; return then; }
int gettimeofday(struct timeval *t, void *zone) { (void)zone; t->tv_sec = then; t->tv_usec = 0; return 0; }
int clock_gettime(clockid_t clock, struct timespec *t) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(clock, t);
  if (clock == CLOCK_REALTIME) t->tv_sec = then;
  return code;
}
"""


@pytest.fixture(scope="module")
def old_clock(tmp_path_factory):
    """A library that turns the wall clock back to 1974 for whoever loads it first."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", folder / "clock.so", folder / "clock.c", "-ldl"]
    subprocess.run(command, check=True)
    return str(folder / "clock.so")


def test_a_clock_in_the_past_changes_nothing(out, whole, old_clock):
    said = subprocess.run(["date", "+%Y"], env={"LD_PRELOAD": old_clock}, capture_output=True, text=True)
    assert said.stdout == "1974\n"  # the clock is really turned back
    assert work(out, "0/2").returncode == 0
    result = work(out, "1/2", "--time-budget", "10m", LD_PRELOAD=old_clock)
    assert result.returncode == 0
    for file in [*out.glob("plan-*"), *out.glob("shards/*")]:
        os.utime(file, (0, 0))
    assert status(out)["ok"] == CELLS
    assert merge(out).returncode == 0
    assert comparable(out) == whole


# ---- large traces


@pytest.fixture
def divided(trace, tmp_path):
    """The same trace as one file a layer and an index of links."""
    folder = tmp_path / "divided"
    (folder / "synthetic").mkdir(parents=True)
    with h5py.File(trace) as source, h5py.File(folder / "index.h5", "w") as index:
        index.attrs.update(source.attrs)
        prompt = index.create_group("prompts/synthetic")
        prompt.attrs.update(source["prompts/synthetic"].attrs)
        for name in source["prompts/synthetic"]:
            if name != "layers":
                source.copy(f"prompts/synthetic/{name}", prompt)
        for name, layer in source["prompts/synthetic/layers"].items():
            with h5py.File(folder / "synthetic" / f"{name}.h5", "w") as file:
                file.attrs.update(source.attrs)
                source.copy(layer, file.create_group("prompts/synthetic/layers"), name)
            link = h5py.ExternalLink(f"synthetic/{name}.h5", f"prompts/synthetic/layers/{name}")
            index[f"prompts/synthetic/layers/{name}"] = link
    return folder / "index.h5"


def test_a_trace_of_many_files_gives_the_table_of_one_file(divided, whole, tmp_path):
    out = tmp_path / "out"
    plan(write_config(tmp_path, divided), out)
    for i in range(3):
        assert work(out, f"{i}/3").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_worker_opens_the_files_of_its_layers_and_no_other(divided, whole, tmp_path):
    out = tmp_path / "out"
    plan(write_config(tmp_path, divided), out)
    away = tmp_path / "away"
    away.mkdir()
    for layer in [0, 1, 3, 4]:
        (divided.parent / f"synthetic/{layer:03}.h5").rename(away / f"{layer:03}.h5")
    assert work(out, "2/5").returncode == 0
    other = work(out, "3/5")
    assert other.returncode == 3
    assert "003.h5 is missing" in other.stderr
    for file in away.iterdir():
        file.rename(divided.parent / "synthetic" / file.name)
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_staged_workers_read_copies_and_leave_nothing_behind(divided, whole, tmp_path):
    out, node = tmp_path / "out", tmp_path / "node"
    plan(write_config(tmp_path, divided), out)
    result = work(out, "2/5", "--stage", node)
    assert result.returncode == 0
    assert "2 files" in result.stderr and str(node) in result.stderr
    assert list(node.iterdir()) == []
    assert work(out, "0/1", "--stage", node).returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_staged_workers_have_all_layers_where_a_budget_is_shared_over_them(divided, tmp_path):
    config, out = write_config(tmp_path, divided), tmp_path / "out"
    config.write_text(config.read_text().replace("[h2o, snapkv, streaming_llm, uniform]", "[h2o, cake]"))
    plan(config, out)
    for i in range(2):
        assert work(out, f"{i}/2", "--stage", tmp_path / "node").returncode == 0
    assert merge(out).returncode == 0
    assert kvreplay("run", config, "-o", tmp_path / "run").returncode == 0
    assert comparable(out) == comparable(tmp_path / "run")


def test_a_layer_that_only_a_shared_budget_needs_fails_nobody_else_when_it_is_missing(divided, tmp_path):
    config, out = write_config(tmp_path, divided, "select: {layers: [0]}\n"), tmp_path / "out"
    config.write_text(config.read_text().replace("[h2o, snapkv, streaming_llm, uniform]", "[h2o, cake]"))
    plan(config, out)
    (divided.parent / "synthetic/003.h5").unlink()
    assert work(out, "0/1").returncode == 1
    assert merge(out, "--partial").returncode == 1
    failed = {row["method"] for row in table(out) if row["status"] == "failed"}
    assert failed == {"cake"}
    assert status(out).items() >= {"ok": 8, "failed": 8}.items()


def test_a_trace_that_goes_away_under_its_worker_costs_no_attempt(divided, whole, tmp_path):
    out, layers = tmp_path / "out", divided.parent / "synthetic"
    plan(write_config(tmp_path, divided), out)
    process = started_worker(out)
    wait_for_cells(out, 1, process)
    away = layers.rename(tmp_path / "away")
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3
    assert "is missing" in messages
    assert status(out).items() >= {"failed": 0, "parked": 0}.items()
    away.rename(layers)
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_arrays_are_those_of_the_computation_that_stands(trace, tmp_path):
    config = write_config(tmp_path, trace, "output: {save: [curves]}\n")
    out = tmp_path / "out"
    plan(config, out, "--layers", 0)
    assert work(out, "0/1").returncode == 0
    (first,) = out.glob("shards/*.jsonl")
    kept = first.rename(tmp_path / "kept.jsonl")
    assert work(out, "0/1", KVREPLAY_ISA="portable").returncode == 0
    (second,) = out.glob("shards/*.jsonl")
    second.rename(out / "shards/shard-1.later.1.jsonl")
    kept.rename(first)
    assert merge(out).returncode == 0
    assert kvreplay("run", config, "--layers", 0, "-o", tmp_path / "run").returncode == 0
    with h5py.File(out / "curves.h5") as merged, h5py.File(tmp_path / "run/curves.h5") as run:
        assert set(merged) == set(run)
        assert all(np.array_equal(merged[key]["rel_err"], run[key]["rel_err"]) for key in run)


def test_a_killed_worker_leaves_copies_that_the_next_one_removes(divided, tmp_path):
    out, node = tmp_path / "out", tmp_path / "node"
    plan(write_config(tmp_path, divided), out)
    process = started_worker(out, "--stage", node)
    wait_for_cells(out, 1, process)
    process.kill()
    process.communicate()
    assert len(list(node.iterdir())) == 1
    assert work(out, "0/1", "--stage", node).returncode == 0
    assert list(node.iterdir()) == []
