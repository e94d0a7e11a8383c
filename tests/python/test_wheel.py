"""The wheel without building it: what it says of itself, and where the command `kvreplay` leads."""

import importlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kvreplay_cli import ROOT, kvreplay, table

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = PROJECT["tool"]["scikit-build"]
ALONE = (sys.executable, "-S")  # without what is installed beside this Python
# Shows its words, and what became of the signals that Python ignores.
STAND_IN = """#!/bin/sh
[ "$1" = fail ] && exit 41
[ "$1" = die ] && kill -TERM $$
grep SigIgn /proc/self/status
echo "$KVREPLAY_PYTHON"
for word in "$@"; do echo "<$word>"; done
"""


@pytest.fixture
def installed(tmp_path):
    """A folder with the package as a wheel would hold it, and a program that shows how it was called."""
    folder = tmp_path / "site"
    (folder / "kvreplay/bin").mkdir(parents=True)
    for path in (ROOT / "apps/kvreplay").glob("*.py"):
        (folder / "kvreplay" / path.name).write_bytes(path.read_bytes())
    program = folder / "kvreplay/bin/kvreplay"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return folder


def command(folder, *words, cwd=None, **environment):
    """The console script of a package in `folder`, run to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KVREPLAY", "PYTHON"))}
    return subprocess.run(
        [*ALONE, "-c", "import sys; from kvreplay.program import main; sys.exit(main())", *words],
        env={**clean, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_the_version_is_the_same_everywhere():
    version = PROJECT["project"]["version"]
    assert importlib.import_module("kvreplay").__version__ == version
    assert f"project(kvreplay VERSION {version} " in (ROOT / "CMakeLists.txt").read_text()
    assert kvreplay("--version").stdout.startswith(f"kvreplay {version} ")


def test_every_package_and_every_command_of_the_wheel_exists():
    for folder in SETTINGS["wheel"]["packages"]:
        assert (ROOT / folder / "__init__.py").is_file(), folder
    names = {Path(folder).name for folder in SETTINGS["wheel"]["packages"]}
    assert set(PROJECT["project"]["scripts"]) == names
    for name, place in PROJECT["project"]["scripts"].items():
        module, function = place.split(":")
        assert module.split(".")[0] == name
        (folder,) = (f for f in SETTINGS["wheel"]["packages"] if Path(f).name == name)
        source = ROOT / folder / f"{module.split('.')[1]}.py"
        assert f"\ndef {function}(" in source.read_text(), place


def test_an_editable_installation_compiles_nothing():
    (override,) = (each for each in SETTINGS["overrides"] if each["if"] == {"state": "editable"})
    assert override["wheel"]["cmake"] is False


def test_what_quickstart_replays_is_in_the_wheel_as_the_configuration_names_it():
    rules = (ROOT / "lib/cmake/wheel.cmake").read_text()
    placed = dict(re.findall(r"install\(DIRECTORY (\S+) DESTINATION kvreplay/data(\S*)", rules))
    assert placed == {"configs": "", "traces/samples": "/traces"}
    config = (ROOT / "configs/quickstart.yaml").read_text()
    (trace,) = re.findall(r"^traces: \[(\S+)\]", config, re.M)
    assert trace == "../traces/samples/smollm2-135m.h5"
    assert (ROOT / "configs" / trace).is_file()


def test_the_program_gets_the_words_as_they_are_and_the_python_to_draw_with(installed):
    done = command(installed, "run", "a b", "--set", "x=[1, 2]", "")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [sys.executable, "<run>", "<a b>", "<--set>", "<x=[1, 2]>", "<>"]


def test_a_python_that_the_user_named_stays(installed):
    assert command(installed, "run", KVREPLAY_PYTHON="mine").stdout.splitlines()[1] == "mine"


def test_exit_codes_and_signals_are_those_of_the_program(installed):
    assert command(installed, "fail").returncode == 41
    assert command(installed, "die").returncode == -signal.SIGTERM


def test_no_signal_is_ignored_that_the_caller_did_not_ignore(installed):
    ignored = int(command(installed, "run").stdout.splitlines()[0].split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        assert not ignored >> (number - 1) & 1, number


def test_a_command_of_the_program_loads_no_package_but_its_own(installed):
    (installed / "kvreplay/bin/kvreplay").unlink()
    heavy = "numpy pandas matplotlib h5py argparse subprocess typing pathlib"
    words = (
        "import sys\nfrom kvreplay.program import main\n"
        "try: main(['--version'])\n"
        f"except SystemExit: print(sorted(set({heavy.split()}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [*ALONE, "-c", words],
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr


def test_without_the_program_one_line_says_what_to_do(installed):
    (installed / "kvreplay/bin/kvreplay").unlink()
    done = command(installed, "run")
    assert done.returncode == 2
    assert re.fullmatch(r"kvreplay: error: \S+ is not there: install a wheel .*\n", done.stderr)


def test_import_leads_to_its_module_and_its_exit_code_is_passed_on(installed):
    cli = installed / "kvreplay/importing/cli.py"
    cli.parent.mkdir()
    (cli.parent / "__init__.py").touch()
    cli.write_text("def main(words):\n    print(words)\n    return 7\n")
    done = command(installed, "import", "a.npz", "--help")
    assert (done.returncode, done.stdout) == (7, "['a.npz', '--help']\n"), done.stderr


def test_quickstart_ends_with_the_first_step_that_fails(installed):
    (installed / "kvreplay/bin/kvreplay").write_text(
        '#!/bin/sh\necho "$1"\n[ "$1" = run ] && exit 3\nexit 0\n'
    )
    done = command(installed, "quickstart")
    assert done.returncode == 3
    assert done.stdout.splitlines()[1:] == ["run"]


def test_quickstart_passes_on_what_asks_it_to_end(installed):
    (installed / "kvreplay/bin/kvreplay").write_text(
        "#!/bin/bash\ntrap 'echo saved; exit 75' TERM\necho started\nfor i in {1..100}; do sleep 0.1; done\n"
    )
    running = subprocess.Popen(
        [*ALONE, "-m", "kvreplay", "quickstart"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(installed)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline().startswith("replay: ")
    assert running.stdout.readline() == "started\n"
    running.send_signal(signal.SIGTERM)
    rest, _ = running.communicate(timeout=20)
    assert (running.returncode, rest) == (75, "saved\n")


def test_help_of_the_program_lists_what_the_python_package_adds():
    shown = kvreplay("--help").stdout
    for name in ("quickstart", "import"):
        assert re.search(rf"^  {name} .*\(of the Python package\)$", shown, re.M)


def test_the_program_hands_quickstart_to_the_python_package(tmp_path):
    done = kvreplay("-q", "quickstart", "--help", cwd=tmp_path, KVREPLAY_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: kvreplay quickstart")


@pytest.mark.long
def test_quickstart_leaves_what_its_last_line_names(tmp_path):
    done = kvreplay("quickstart", "-o", "here", cwd=tmp_path, KVREPLAY_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    named = done.stdout.splitlines()[-1].removeprefix("done: ").split(", ")
    assert named == ["here/results.csv", "here/figures/", "here/report.html"]
    assert all((tmp_path / name).exists() for name in named)
    assert len(table(tmp_path / "here")) == 420
