"""Output without space, permission or folder gives a message and exit code 2, and loses no results."""

import os
import resource
import shutil
import subprocess
import time

import pytest
from kvreplay_cli import BINARY, kvreplay, replayed, start, synth
from whole_files import check_whole

WORK = ["--method", "h2o,snapkv,subgen", "--budget", "32,64", "--seeds", "2", "--progress", "none"]
WORK += ["-s", "output.save=[curves, kept, outputs]"]
KB = 1000


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return synth(tmp_path_factory.mktemp("trace") / "t.h5", "--tokens", 600, "--prompt", 300, "--layers", 2)


@pytest.fixture(scope="module")
def undisturbed(trace, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    return replayed(trace, out, *WORK)


def run_with_files_up_to(size_bytes, *words):
    limit = (size_bytes, size_bytes)
    return subprocess.run(
        [str(BINARY), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )


@pytest.mark.parametrize("size_bytes", [0, 1 * KB, 10 * KB, 40 * KB, 100 * KB, 200 * KB])
def test_a_run_at_its_file_size_limit_says_so_and_resumes_later(trace, undisturbed, tmp_path, size_bytes):
    done = run_with_files_up_to(size_bytes, "run", trace, *WORK, "-o", tmp_path)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"kvreplay: error: {tmp_path}")
    assert "File too large" in last
    check_whole(tmp_path)
    assert replayed(trace, tmp_path, *WORK) == undisturbed
    check_whole(tmp_path)


@pytest.mark.parametrize("words", [("synth", "-o"), ("cluster", "{trace}", "-o")])
def test_other_commands_report_the_file_size_limit(trace, tmp_path, words):
    words = [word.format(trace=trace) for word in words]
    done = run_with_files_up_to(5 * KB, *words, tmp_path / "x.h5")
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".part"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_reported_and_a_larger_one_resumes(trace, undisturbed, tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not possible here")
    try:
        done = kvreplay("run", trace, *WORK, "-o", tmp_path / "out")
        assert done.returncode == 2, done.stderr
        assert "No space left on device" in done.stderr.splitlines()[-1]
        check_whole(tmp_path / "out")
        subprocess.run(["mount", "-o", "remount,size=50m", tmp_path], check=True)
        assert replayed(trace, tmp_path / "out", *WORK) == undisturbed
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_that_vanishes_ends_the_run_with_a_message(trace, tmp_path):
    out = tmp_path / "out"
    process = start("run", trace, *WORK, "-s", "seeds.count=50", "-j", 1, "-o", out)
    while not list(out.glob("shards/*.jsonl")) and process.poll() is None:
        time.sleep(0.01)
    shutil.rmtree(out)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 2, messages
    assert f"kvreplay: error: {out}" in messages
    assert "No such file or directory" in messages
    assert replayed(trace, out, *WORK)


def test_an_uncreatable_folder_is_reported_before_anything_runs(trace):
    done = kvreplay("run", trace, *WORK, "-o", "/proc/out")
    assert done.returncode == 2
    assert done.stderr in (
        "kvreplay: error: /proc/out: cannot be used for output (No such file or directory). "
        "Choose another directory with -o\n",
        "kvreplay: error: cannot write to --out /proc/out: /proc is not writable. "
        "Choose another with -o DIR\n",
    )


def test_a_working_folder_that_is_gone_is_named_and_no_lack_of_memory(trace, tmp_path):
    script = 'mkdir gone && cd gone && rmdir ../gone && "$0" run "$1" --method exact -o out'
    done = subprocess.run(["bash", "-c", script, BINARY, trace], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "No such file or directory" in done.stderr
    assert "--jobs" not in done.stderr


def test_a_sound_trace_is_not_called_damaged_without_a_word_about_memory(trace):
    for kilobytes in range(30_000, 60_000, 5_000):
        words = ["bash", "-c", f'ulimit -v {kilobytes}; "$0" validate "$1"', BINARY, trace]
        said = subprocess.run(words, capture_output=True, text=True).stderr
        assert "damaged beyond" not in said or "too little memory" in said
