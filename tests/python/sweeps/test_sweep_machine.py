"""A full disk, a directory that cannot be written, a clock in the past."""

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from kvreplay_cli import BINARY
from sweep_fixture import (
    CELLS,
    WAIT_S,
    comparable,
    merge,
    plan,
    status,
    work,
    write_config,
)


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
    assert "cannot be written" in result.stderr and "are kept" in result.stderr
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


def as_unprivileged_user():
    """Root may write anywhere, so the test switches to an unprivileged user."""
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
def test_an_unwritable_output_directory_is_reported(trace, tmp_path_factory, words):
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
    binary = shutil.copy(BINARY, folder / "kvreplay")  # the checkout may not be readable by all users
    try:
        result = subprocess.run(
            [binary, "sweep", *[places.get(word, word) for word in words]],
            preexec_fn=as_unprivileged_user,
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
    """A preloaded library that sets the wall clock back to 1974."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", folder / "clock.so", folder / "clock.c", "-ldl"]
    subprocess.run(command, check=True)
    return str(folder / "clock.so")


def test_a_clock_in_the_past_changes_nothing(out, whole, old_clock):
    said = subprocess.run(["date", "+%Y"], env={"LD_PRELOAD": old_clock}, capture_output=True, text=True)
    assert said.stdout == "1974\n"  # the library does set the clock back
    assert work(out, "0/2").returncode == 0
    result = work(out, "1/2", "--time-budget", "10m", LD_PRELOAD=old_clock)
    assert result.returncode == 0
    for file in [*out.glob("plan-*"), *out.glob("shards/*")]:
        os.utime(file, (0, 0))
    assert status(out)["ok"] == CELLS
    assert merge(out).returncode == 0
    assert comparable(out) == whole
