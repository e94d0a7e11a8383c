"""Interrupted recordings: the files that stay behind, and how to resume."""

import os
import shutil
import signal

import h5py
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dumper_runs import KVDUMP, contents  # noqa: E402
from front_door import record as cli  # noqa: E402
from kvrecord import job  # noqa: E402
from tiny_model_folder import TEXT, jsonl, saved, words_for  # noqa: E402

pytestmark = pytest.mark.torch

OK, USAGE, TROUBLE = 0, 2, 3
# Prints a line when the first layer's file has its final name, then waits to be killed.
WAITS = """
import sys, time
from front_door import record as cli  # noqa: E402
from kvrecord import sinks
link = sinks.DirectorySink.link
def link_and_wait(self, *words):
    link(self, *words)
    print("linked", flush=True)
    time.sleep(60)
sinks.DirectorySink.link = link_and_wait
sys.exit(cli.main(sys.argv[1:]))
"""
WAITS_IN_A_FILE = WAITS.replace("DirectorySink.link", "FileSink.write_layer")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def words(llama, tmp_path):
    """words(output, options...): arguments of the program for two prompts."""
    prompts = jsonl(tmp_path / "p.jsonl", TEXT, TEXT[:30])
    return words_for(llama, prompts, "--generate", 4, "--ignore-eos")


@pytest.fixture
def kill_while_waiting(dumpers, tmp_path):
    """kill_while_waiting(source, words): runs the program and kills it once it waits."""

    def run(source, words):
        with dumpers.run(tmp_path, source, *words) as process:
            said = []
            for line in process.printed:
                said.append(line)
                if line == "linked\n":
                    break
            assert said[-1:] == ["linked\n"], said
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL

    return run


def names(folder, suffix=""):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob(f"*{suffix}") if p.is_file())


@pytest.fixture
def forwards(monkeypatch):
    """A list with one entry for each prompt that ran through the model."""
    ran = []
    plain = job.Job._generate

    def counted(self, input_ids):
        ran.append(input_ids)
        return plain(self, input_ids)

    monkeypatch.setattr(job.Job, "_generate", counted)
    return ran


def test_a_directory_holds_one_file_per_prompt_and_layer_and_an_index(words, tmp_path):
    assert cli.main(words(f"{tmp_path}/d.v1/", "--with-output")) == OK
    assert cli.main(words(tmp_path / "one.h5", "--with-output")) == OK
    files = ["index.h5", "p0/000.h5", "p0/001.h5", "p1/000.h5", "p1/001.h5"]
    assert names(tmp_path / "d.v1") == files
    assert contents(tmp_path / "d.v1/index.h5") == contents(tmp_path / "one.h5")
    with h5py.File(tmp_path / "d.v1/index.h5") as index, h5py.File(tmp_path / "one.h5") as one:
        assert index.attrs["trace_id"] == one.attrs["trace_id"]
    assert cli.main([*words(f"{tmp_path}/d.v1/", "--with-output", "--resume"), "--verify"]) == OK


def test_resume_runs_only_prompts_whose_layers_are_missing(words, tmp_path, forwards):
    out = tmp_path / "d"
    assert cli.main(words(out, "--with-text")) == OK
    whole = contents(out / "index.h5")
    with h5py.File(out / "index.h5") as index:
        identity = index.attrs["trace_id"]
    (out / "p1/001.h5").unlink()
    (out / "index.h5").unlink()
    kept = {name: (out / name).stat().st_mtime_ns for name in names(out)}
    forwards.clear()
    assert cli.main(words(out, "--with-text", "--resume", "--verify")) == OK
    assert len(forwards) == 1
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert contents(out / "index.h5") == whole
    with h5py.File(out / "index.h5") as index:
        assert index.attrs["trace_id"] == identity
        prompt = index["prompts/p0"]
        assert "".join(prompt["token_text"].asstr()) == "".join(prompt.attrs["text"].split())
        assert prompt.attrs["n_generated"] == 3


def test_resume_keeps_a_finished_dump_and_restores_a_file_that_its_index_misses(words, tmp_path, forwards):
    out = tmp_path / "d"
    assert cli.main(words(out)) == OK
    forwards.clear()
    assert cli.main(words(out, "--resume")) == OK
    assert forwards == []
    (out / "p0/000.h5").unlink()
    assert cli.main(words(out, "--resume", "--verify")) == OK
    assert len(forwards) == 1
    assert (out / "p0/000.h5").exists()


def test_a_dump_that_was_killed_after_its_last_file_leaves_nothing_when_it_is_resumed(words, tmp_path):
    for output in (tmp_path / "d", tmp_path / "t.h5"):
        assert cli.main(words(output)) == OK
        stale = tmp_path / f"{output.name}.spool"
        stale.mkdir()
        (stale / "000.k").write_bytes(b"rows")
        assert cli.main(words(output, "--resume")) == OK
        assert not stale.exists()


def test_existing_dumps_are_neither_overwritten_nor_resumed_with_other_settings(words, tmp_path, capsys):
    out = tmp_path / "d"
    assert cli.main(words(out)) == OK
    before = contents(out / "index.h5")
    for missing in ("nothing", "index.h5"):
        (out / missing).unlink(missing_ok=True)
        assert cli.main(words(out)) == USAGE
        assert "use --resume to keep what is finished, --force to overwrite it" in capsys.readouterr().err
        assert cli.main(words(out, "--resume", "--dtype", "f16")) == USAGE
        assert "made with other settings; use --force or another -o" in capsys.readouterr().err
    assert cli.main(words(out, "--resume")) == OK
    assert contents(out / "index.h5") == before
    assert cli.main(words(out, "--force", "--dtype", "f16")) == OK
    assert contents(out / "index.h5") != before


def test_a_killed_directory_dump_keeps_finished_layers_and_resumes(words, kill_while_waiting, tmp_path):
    out = tmp_path / "d"
    kill_while_waiting(WAITS, words(out))
    assert names(out) == ["index.h5.part", "p0/000.h5"]
    assert (tmp_path / "d.spool").is_dir()
    kept = (out / "p0/000.h5").stat().st_mtime_ns
    assert cli.main(words(out)) == USAGE
    assert cli.main(words(out, "--resume", "--verify")) == OK
    assert (out / "p0/000.h5").stat().st_mtime_ns == kept
    assert names(out, "part") == []
    assert not (tmp_path / "d.spool").exists()


@pytest.fixture
def cut_short(words, kill_while_waiting, tmp_path):
    """A folder with a finished f32 recording; a --force run that replaces it with f16 was killed after one
    layer."""
    out = tmp_path / "d"
    assert cli.main(words(out)) == OK
    kill_while_waiting(WAITS, words(out, "--force", "--dtype", "f16"))
    return out


def test_a_killed_force_resumes_with_its_settings(words, cut_short):
    kept = (cut_short / "p0/000.h5").stat().st_mtime_ns
    assert cli.main(words(cut_short, "--resume", "--dtype", "f16", "--verify")) == OK
    assert (cut_short / "p0/000.h5").stat().st_mtime_ns == kept
    assert {len(data) for data in contents(cut_short / "index.h5").values()} == half_sizes(cut_short)


def half_sizes(folder):
    """Bytes of a recording's datasets at two bytes per number."""
    with h5py.File(folder / "index.h5") as index:
        groups = [group for prompt in index["prompts"].values() for group in prompt["layers"].values()]
        return {2 * data.size for group in groups for data in group.values()}


def test_a_killed_force_is_not_mistaken_for_the_dump_it_replaces(words, cut_short, capsys):
    assert names(cut_short, ".h5") == ["p0/000.h5"]
    assert cli.main(words(cut_short, "--resume")) == USAGE
    assert "p0/000.h5: made with other settings; use --force" in capsys.readouterr().err
    assert not (cut_short / "index.h5").exists()


def test_a_killed_force_over_a_dump_without_an_index_resumes_too(words, kill_while_waiting, tmp_path):
    out = tmp_path / "d"
    assert cli.main(words(out)) == OK
    (out / "index.h5").unlink()
    kill_while_waiting(WAITS, words(out, "--force", "--dtype", "f16"))
    assert cli.main(words(out, "--resume", "--dtype", "f16")) == OK


def test_a_force_that_fails_before_its_first_layer_leaves_the_old_dump(words, tmp_path, monkeypatch):
    out = tmp_path / "d"
    assert cli.main(words(out)) == OK
    before = contents(out / "index.h5")

    def fail(self, input_ids):
        raise OSError("no")

    monkeypatch.setattr(job.Job, "_generate", fail)
    assert cli.main(words(out, "--force", "--dtype", "f16")) == TROUBLE
    assert contents(out / "index.h5") == before


def test_an_index_that_links_to_rows_of_another_kind_is_not_finished(words, tmp_path, capsys):
    out, other = tmp_path / "d", tmp_path / "other"
    assert cli.main(words(out)) == OK
    assert cli.main(words(other, "--dtype", "f16")) == OK
    shutil.copy(other / "p1/000.h5", out / "p1/000.h5")
    assert cli.main(words(out, "--resume")) == USAGE
    assert "p1/000.h5: made with other settings; use --force" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--resume"], ["--force"]])
def test_a_killed_dump_into_a_file_leaves_no_trace_and_the_next_one_cleans_up(
    words, kill_while_waiting, tmp_path, options
):
    kill_while_waiting(WAITS_IN_A_FILE, words(tmp_path / "t.h5"))
    assert names(tmp_path, ".h5") == []
    assert (tmp_path / "t.h5.part").exists()
    assert list((tmp_path / "t.h5.spool").iterdir())
    (tmp_path / "t.h5.spool" / "000.k").write_bytes(b"stale")
    assert cli.main(words(tmp_path / "t.h5", "--verify", *options)) == OK
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.jsonl", "t.h5"]


@pytest.mark.parametrize("limit", [600, 6000], ids=["rows that wait", "the trace itself"])
@pytest.mark.parametrize("output", ["t.h5", "d"])
def test_a_full_disk_ends_in_a_message_and_nothing_under_a_final_name(
    words, dumpers, tmp_path, limit, output
):
    with dumpers.run(tmp_path, KVDUMP, *words(tmp_path / output), most_bytes=limit) as process:
        said = process.printed.read()
    assert process.returncode == TROUBLE, said
    last = said.strip().splitlines()[-1]
    assert last.startswith(f"kvreplay: error: {tmp_path}/{output}"), said
    assert "Traceback" not in said
    assert names(tmp_path, ".h5") == []
    assert not (tmp_path / f"{output}.spool").exists()
    assert cli.main(words(tmp_path / output, "--verify", "--resume")) == OK


def test_an_output_folder_that_vanishes_ends_in_a_message(words, tmp_path, monkeypatch, capsys):
    out = tmp_path / "away"
    plain = job.Job._generate

    def vanish(self, input_ids):
        shutil.rmtree(out)
        return plain(self, input_ids)

    monkeypatch.setattr(job.Job, "_generate", vanish)
    for target in (out / "t.h5", f"{out}/"):
        assert cli.main(words(target)) == TROUBLE
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("kvreplay: error: "), last
        assert not {"away/t.h5", "away/index.h5"} & set(names(tmp_path))
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize("output", ["file/t.h5", "file/d/"])
def test_an_output_that_cannot_be_written_ends_in_a_message(words, tmp_path, capsys, output):
    (tmp_path / "file").write_text("no folder")
    target = f"{tmp_path}/{output}"
    assert cli.main(words(target)) == 2
    why = f"{tmp_path}/file is a file, not a folder"
    assert capsys.readouterr().err == f"kvreplay: error: {target}: {why}: choose another -o\n"
    assert (tmp_path / "file").read_text() == "no folder"
