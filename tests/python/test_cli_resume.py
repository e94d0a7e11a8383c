"""Runs that are killed, interrupted, continued or extended."""

import json
import shutil
import signal
import time
from collections import Counter

import h5py
import pytest
from kvreplay_cli import kvreplay, published, replayed, start, synth, table

# Several seconds of work on one thread, so that a signal arrives while cells are replayed.
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


def stop_during_run(trace, out, *signals):
    """Starts a run and sends the signals once some cells are published; returns exit code and messages."""
    process = start("run", trace, *WORK, "-j", 1, "-o", out)
    until = time.monotonic() + WAIT_S
    while published(out) < 10 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.02)  # two signals at once would arrive as one
    _, messages = process.communicate(timeout=WAIT_S)
    return process.returncode, messages


def test_two_threads_give_the_table_of_one(trace, whole, tmp_path):
    assert replayed(trace, tmp_path, *WORK, "-j", 2) == whole


def test_a_killed_run_continues_to_the_same_table(trace, whole, tmp_path):
    code, _ = stop_during_run(trace, tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    done = published(tmp_path)
    assert 10 <= done < len(whole)
    assert replayed(trace, tmp_path, *WORK) == whole
    assert published(tmp_path) <= len(whole) + 1  # an incomplete line may remain


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]
)
def test_a_signal_saves_finished_cells(trace, whole, tmp_path, number, code):
    got, messages = stop_during_run(trace, tmp_path, number)
    assert got == code
    assert "run the same command to continue" in messages
    rows = table(tmp_path)
    assert len(rows) == published(tmp_path) < len(whole)
    meta = json.loads((tmp_path / "results.meta.json").read_text())
    assert meta["cells"]["missing"] == len(whole) - len(rows)
    assert replayed(trace, tmp_path, *WORK) == whole


def test_two_signals_at_once_still_save_finished_cells(trace, whole, tmp_path):
    got, messages = stop_during_run(trace, tmp_path, signal.SIGTERM, signal.SIGTERM)
    assert got == 75
    assert "run the same command to continue" in messages
    assert len(table(tmp_path)) == published(tmp_path) < len(whole)


def test_a_second_signal_later_ends_at_once(trace, tmp_path):
    words = ["--method", "balancekv", "--budget", "256", "--seeds", 2000, "-j", 1]
    process = start("run", trace, *words, "-o", tmp_path)
    process.stderr.readline()
    time.sleep(0.5)  # the first head takes many seconds
    process.send_signal(signal.SIGTERM)
    time.sleep(0.6)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 75
    assert "run the same command to continue" not in messages


def test_running_again_does_nothing(trace, tmp_path):
    words = ["run", trace, "--method", "exact,window", "--budget", "64", "-o", tmp_path]
    assert kvreplay(*words).returncode == 0
    before, lines = (tmp_path / "results.csv").read_text(), published(tmp_path)
    assert kvreplay(*words).returncode == 0
    assert (tmp_path / "results.csv").read_text() == before  # including times: no cell was measured again
    assert published(tmp_path) == lines


def test_a_larger_plan_replays_only_what_is_missing(trace, tmp_path):
    words = ["run", trace, "-o", tmp_path, "--layers", "0"]
    assert kvreplay(*words, "--method", "window", "--budget", "64").returncode == 0
    result = kvreplay(*words, "--method", "window,exact", "--budget", "64,128")
    assert result.returncode == 0
    assert "9 cells, 3 done before" in result.stderr
    assert published(tmp_path) == 9


def methods_in(out):
    return Counter((row["method"], row["budget_tokens"]) for row in table(out))


def test_a_run_prints_no_notes_on_methods_of_earlier_runs(trace, tmp_path):
    words = ["run", trace, "-o", tmp_path, "--layers", "0", "--budget", "64"]
    assert "pyramidkv equals snapkv" in kvreplay(*words, "--method", "snapkv,pyramidkv").stderr
    later = kvreplay(*words, "--method", "window")
    assert (later.returncode, "equals" in later.stderr) == (0, False)
    meta = json.loads((tmp_path / "results.meta.json").read_text())
    assert any("pyramidkv equals snapkv" in note["text"] for note in meta["notes"])  # the table holds them


def test_a_method_added_to_a_folder_joins_its_table(trace, tmp_path):
    words = ["run", trace, "-o", tmp_path, "--layers", "0", "--budget", "64"]
    assert kvreplay(*words, "--method", "window").returncode == 0
    added = kvreplay(*words, "--method", "exact")
    assert added.returncode == 0
    assert "3 cells, 0 done before" in added.stderr
    assert "3 cells of earlier runs stay in the table" in added.stderr
    assert "window" not in added.stdout  # a run prints only its own rows
    assert methods_in(tmp_path) == {("window", "64"): 3, ("exact", ""): 3}
    assert "`kvreplay run --plan-only` leaves them out" in added.stderr
    both = replayed(trace, tmp_path / "both", "--layers", "0", "--budget", "64", "--method", "window,exact")
    assert table(tmp_path) == both
    meta = json.loads((tmp_path / "results.meta.json").read_text())
    assert meta["cells"] == {"planned": 6, "ok": 6, "failed": 0, "missing": 0}
    assert [run["config"]["methods"][0]["name"] for run in meta["earlier_runs"]] == ["window"]


def test_a_smaller_plan_keeps_a_folders_other_cells_unless_only_the_plan_is_requested(trace, tmp_path):
    words = ["run", trace, "-o", tmp_path, "--layers", "0", "--method", "window"]
    assert kvreplay(*words, "--budget", "64,128").returncode == 0
    assert kvreplay(*words, "--budget", "64").returncode == 0
    assert methods_in(tmp_path) == {("window", "64"): 3, ("window", "128"): 3}
    assert kvreplay(*words, "--budget", "64", "--plan-only").returncode == 0
    assert methods_in(tmp_path) == {("window", "64"): 3}
    again = kvreplay(*words, "--budget", "64,128")
    assert "6 cells, 6 done before" in again.stderr  # the shards still hold them
    assert kvreplay(*words, "--budget", "32", "--force").returncode == 0
    assert methods_in(tmp_path) == {("window", "32"): 3}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prefill", "500"], 'replay.prefill is "trace" there and 500 here'),
        (["--precision", "double"], 'run.precision is "single" there and "double" here'),
        (["-s", "metrics=[rel_err_out_mean]"], 'metrics is "default" there'),
    ],
)
def test_cells_of_other_settings_never_share_a_table(trace, tmp_path, words, told):
    first = ["run", trace, "-o", tmp_path, "--layers", "0", "--method", "window", "--budget", "64"]
    assert kvreplay(*first).returncode == 0
    before = table(tmp_path)
    for plan_only in ([], ["--plan-only"]):
        other = kvreplay(*first, *words, *plan_only)
        assert other.returncode == 2
        assert "holds 3 cells of another question" in other.stderr and told in other.stderr
        assert "-o" in other.stderr and "--force" in other.stderr
    assert table(tmp_path) == before


def test_cells_of_another_trace_never_share_a_table(trace, tmp_path):
    other = synth(tmp_path / "other.h5", "--tokens", 96, "--prompt", 64, "--seed", 1)
    words = ["--method", "window", "--budget", "32", "-o", tmp_path / "out"]
    assert kvreplay("run", other, *words).returncode == 0
    done = kvreplay("run", trace, *words)
    assert done.returncode == 2
    assert "they are of another trace" in done.stderr


def test_cells_of_traces_with_other_content_never_share_a_table(trace, tmp_path):
    """A trace with another scale in its layers has an equal id, but other numbers."""
    words = ["--layers", "0", "--method", "window", "--budget", "64", "-o", tmp_path / "out"]
    assert kvreplay("run", trace, *words).returncode == 0
    shutil.copy(trace, tmp_path / "t.h5")
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        (prompt,) = file["prompts"].values()
        prompt["layers/000"].attrs["scaling"] *= 0.5
    done = kvreplay("run", tmp_path / "t.h5", *words)
    assert done.returncode == 2
    assert "holds 3 cells of window that were computed from another content" in done.stderr
    assert "--force" in done.stderr


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_foreign_table_is_never_overwritten(trace, tmp_path, force):
    (tmp_path / "results.csv").write_text("name,score\na,1\n")
    done = kvreplay("run", trace, "--method", "exact", "-o", tmp_path, *force)
    assert done.returncode == 2
    assert "is no table of this program, and is not overwritten. Move it away" in done.stderr
    assert (tmp_path / "results.csv").read_text() == "name,score\na,1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


def test_a_table_without_its_shards_is_replaced_only_by_force(trace, tmp_path):
    words = ["run", trace, "--layers", "0", "--method", "window", "--budget", "64", "-o", tmp_path]
    assert kvreplay(*words).returncode == 0
    shutil.rmtree(tmp_path / "shards")
    done = kvreplay(*words)
    assert done.returncode == 2
    assert "is a table without the shards that it was made from" in done.stderr
    assert len(table(tmp_path)) == 3
    assert kvreplay(*words, "--force").returncode == 0


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_trace_is_made_over_another_file_only_by_force(tmp_path, force):
    (tmp_path / "t.h5").write_text("mine")
    done = kvreplay("synth", "-o", tmp_path / "t.h5", "--tokens", 8, "--prompt", 4, *force)
    assert done.returncode == (0 if force else 2)
    assert ("overwrite it with --force" in done.stderr) == (not force)
    assert ((tmp_path / "t.h5").read_bytes() == b"mine") == (not force)


def test_the_record_states_how_the_numbers_were_made(trace, tmp_path):
    assert kvreplay("run", trace, "--method", "exact", "-o", tmp_path, "-j", 2).returncode == 0
    meta = json.loads((tmp_path / "results.meta.json").read_text())
    assert meta["config"]["methods"][0]["name"] == "exact"
    assert meta["jobs"] == 2
    for key in ["version", "git_commit", "hdf5", "compiler", "host", "isa", "created_utc", "command_line"]:
        assert meta[key]
    assert len(meta["traces"][0]["trace_id"]) == 64
