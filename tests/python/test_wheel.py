"""Checks the wheel without building it: its metadata, and the command `kvreplay`."""

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kvreplay.program import ENGINE
from kvreplay.verbs import VERBS
from kvreplay_cli import BINARY, ROOMS, ROOT, kvreplay, table

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = PROJECT["tool"]["scikit-build"]
ALONE = (sys.executable, "-S")  # without this Python's installed packages
# Prints its arguments, and the state of the signals that Python ignores.
STAND_IN = """#!/bin/sh
[ "$1" = fail ] && exit 41
[ "$1" = die ] && kill -TERM $$
grep SigIgn /proc/self/status
for word in "$@"; do echo "<$word>"; done
"""


@pytest.fixture
def installed(tmp_path):
    """A folder with the package as in a wheel, and a program that prints how it was called."""
    folder = tmp_path / "site"
    for package in ("lib/python/kvbase", "apps/kvreplay"):
        shutil.copytree(
            ROOT / package, folder / Path(package).name, ignore=shutil.ignore_patterns("__pycache__")
        )
    (folder / "kvreplay/bin").mkdir()
    program = folder / "kvreplay/bin/kvreplay"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return folder


def command(folder, *words, cwd=None, **environment):
    """Runs the console script of a package in `folder` to its end."""
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
    program = (ROOT / "apps/kvreplay/program.py").read_text()
    scripts = PROJECT["project"]["scripts"]
    assert set(scripts) == {"kvreplay", "kvdump", "kvconfirm", "kvanalysis"}
    for place in scripts.values():
        module, function = place.split(":")
        assert module == "kvreplay.program"
        assert f"\ndef {function}(" in program, place


def test_an_editable_installation_compiles_nothing():
    (override,) = (each for each in SETTINGS["overrides"] if each["if"] == {"state": "editable"})
    assert override["wheel"]["cmake"] is False


def test_the_wheel_contains_quickstarts_trace_at_the_configured_path():
    rules = (ROOT / "lib/cmake/wheel.cmake").read_text()
    placed = dict(re.findall(r"install\(DIRECTORY (\S+) DESTINATION kvreplay/data(\S*)", rules))
    assert placed == {"configs": "", "traces/samples": "/traces"}
    config = (ROOT / "configs/quickstart.yaml").read_text()
    (trace,) = re.findall(r"^traces: \[(\S+)\]", config, re.M)
    assert trace == "../traces/samples/smollm2-135m.h5"
    assert (ROOT / "configs" / trace).is_file()


def test_the_program_gets_the_words_as_they_are(installed):
    done = command(installed, "-q", "run", "a b", "--set", "x=[1, 2]", "")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["<-q>", "<run>", "<a b>", "<--set>", "<x=[1, 2]>", "<>"]


def test_exit_codes_and_signals_are_those_of_the_program(installed):
    assert command(installed, "fail").returncode == 41
    assert command(installed, "die").returncode == -signal.SIGTERM


def test_no_signal_is_ignored_that_the_caller_did_not_ignore(installed):
    ignored = int(command(installed, "run").stdout.splitlines()[0].split()[1], 16)
    numbers = [signal.SIGPIPE, signal.SIGXFSZ]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's job in the background ignores it
        numbers.append(signal.SIGINT)
    for number in numbers:
        assert not ignored >> (number - 1) & 1, number


def test_a_command_of_the_program_loads_no_other_package(installed):
    heavy = "numpy pandas matplotlib h5py argparse subprocess typing pathlib"
    words = (
        "import os, sys\nfrom kvreplay.program import main\n"
        f"os.execv = lambda *_: sys.exit(print(sorted(set({heavy.split()}) & set(sys.modules))))\n"
        "main(['--version'])"
    )
    done = subprocess.run(
        [*ALONE, "-c", words],
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr


def test_without_the_program_a_one_line_message_gives_the_remedy(installed):
    (installed / "kvreplay/bin/kvreplay").unlink()
    done = command(installed, "run")
    assert done.returncode == 2
    assert re.fullmatch(r"kvreplay: error: \S+ is not there: install a wheel .*\n", done.stderr)


def test_import_leads_to_its_module_and_its_exit_code_is_passed_on(installed):
    cli = installed / "kvreplay/importing/cli.py"
    shutil.rmtree(cli.parent)
    cli.parent.mkdir()
    (cli.parent / "__init__.py").touch()
    cli.write_text(
        "def add_options(parser): parser.add_argument('source')\n"
        "def run(options):\n    print(options.source)\n    return 7\n"
    )
    done = command(installed, "import", "a.npz")
    assert (done.returncode, done.stdout) == (7, "a.npz\n"), done.stderr


def test_quickstart_ends_with_the_first_step_that_fails(installed):
    (installed / "kvreplay/bin/kvreplay").write_text(
        '#!/bin/sh\necho "$1"\n[ "$1" = run ] && exit 3\nexit 0\n'
    )
    done = command(installed, "quickstart")
    assert done.returncode == 3
    assert done.stdout.splitlines()[1:] == ["run"]


def test_quickstart_forwards_termination_signals(installed):
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


def test_the_program_names_the_verbs_of_the_python_package_and_refuses_them():
    shown = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    named = re.search(r"^With the Python package: (.*?)\n\n", shown, re.M | re.S)[1]
    own = re.findall(r"^  (\w+)  ", shown.partition("Subcommands:")[2], re.M)
    only = [name for name in VERBS if name not in own]
    assert "table" in own and len(only) == len(VERBS) - 1
    assert re.sub(r"\s+", " ", named).split(", ") == only
    for name in only:
        refused = subprocess.run([BINARY, name, "x"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"kvreplay: error: {name} is a verb of the Python package")
        assert refused.stderr.count("\n") == 1


def test_help_lists_the_verbs_of_the_program_and_of_python(tmp_path):
    shown = front_door("--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert front_door(cwd=tmp_path).stdout == shown.stdout
    own = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    verbs = re.findall(r"^  (\w+)  ", own.partition("Subcommands:")[2], re.M)
    assert set(re.findall(r"^  (\w+)  ", shown.stdout.partition("Subcommands:")[2], re.M)) >= {*verbs, *VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_python_has_help_with_two_examples(verb, tmp_path):
    shown = front_door(verb, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"usage: kvreplay {verb}")
    assert shown.stdout.count(f"  kvreplay {verb} ") + shown.stdout.count(f"  kvreplay {verb}\n") >= 2


@pytest.mark.parametrize(
    "words", ["table r", "compare r --at 20%", "list methods", "describe h2o", "--help"], ids=str
)
def test_a_reader_that_stops_early_is_no_error(tmp_path, words):
    """`kvreplay compare ... | head`: the pipe is closed before the answer is written.

    The program of the engine ends by the signal of a closed pipe, as `cat` does; a shell says nothing then.
    """
    words = words.split()
    if "r" in words:
        run = ["run", ROOT / "traces/samples/smollm2-135m.h5", "--method", "h2o,tova", "--budget", "64,128"]
        assert front_door(*map(str, run), "-o", "r", cwd=tmp_path).returncode == 0
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "kvreplay", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "KVREPLAY": str(BINARY), "PYTHONPATH": os.pathsep.join(ROOMS)},
    )
    os.close(writer)
    ends = -signal.SIGPIPE if words[0] in ENGINE else 0
    assert (done.returncode, done.stderr) == (ends, "")


def front_door(*words, cwd):
    """Runs the command of the Python package in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "kvreplay", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "KVREPLAY": str(BINARY), "PYTHONPATH": os.pathsep.join(ROOMS)},
    )


@pytest.mark.long
def test_quickstart_makes_the_files_in_its_last_line(tmp_path):
    done = kvreplay("quickstart", "-o", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    named = done.stdout.splitlines()[-1].removeprefix("done: ").split(", ")
    assert named == ["here/results.csv", "here/figures/", "here/report.html"]
    assert all((tmp_path / name).exists() for name in named)
    assert len(table(tmp_path / "here")) == 1140
