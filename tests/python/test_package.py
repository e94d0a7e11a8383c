"""Other projects can use an installation: find_package(kvreplay) in CMake, and the Python packages."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from kvreplay_cli import BINARY, ROOT, table

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
BUILD = BINARY.parent
SELECT = ["-s", "select.layers=[15]", "--budget", "64", "--progress", "none"]


def run(*words, **options):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    if not (BUILD / "cmake_install.cmake").exists():
        pytest.skip("KVREPLAY is not in its build folder")
    installed = tmp_path_factory.mktemp("installed") / "here"
    run("cmake", "--install", BUILD, "--prefix", installed)
    return installed.rename(installed.with_name("moved"))


def quick_device_code():
    """Flags that make nvcc, if present, four times as fast: this code never runs on a device."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    known = nvcc is not None and "--Ofast-compile" in run(nvcc, "--help")
    return {"NVCC_APPEND_FLAGS": "--Ofast-compile max"} if known else {}


@pytest.fixture(scope="module")
def second_project(prefix, tmp_path_factory):
    source, build = tmp_path_factory.mktemp("second"), tmp_path_factory.mktemp("second_build")
    shutil.copytree(ROOT / "tests/package", source, dirs_exist_ok=True)
    run(
        "cmake",
        "-S",
        source,
        "-B",
        build,
        "-G",
        "Ninja",
        # The code compiled here runs only briefly; the linked library is optimised as usual.
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG",
        "-DCMAKE_CUDA_ARCHITECTURES=90",  # one device, if the package contains device code
        f"-DCMAKE_PREFIX_PATH={prefix}",
    )
    run("cmake", "--build", build, env=os.environ | quick_device_code())
    return build


def errors(out):
    return {
        (row["layer"], row["kv_head"], row["method"]): float(row["rel_err_out_mean"]) for row in table(out)
    }


def test_the_installed_program_runs_outside_the_checkout(prefix, tmp_path):
    program = prefix / "bin/kvreplay"
    here = {"cwd": tmp_path, "env": {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}}
    assert run(program, "--version", **here) == run(BINARY, "--version")
    run(program, "run", SAMPLE, "--method", "h2o", *SELECT, "-o", tmp_path / "out", **here)
    assert len(table(tmp_path / "out")) == 3


def test_every_installed_header_compiles_with_nothing_but_its_own_and_json(prefix, tmp_path):
    headers = sorted(prefix.glob("include/kvreplay/**/*.hpp"))
    own = [path.relative_to(prefix / "include") for path in headers if "cuda" not in path.parts]
    assert len(own) > 100
    (tmp_path / "all.cpp").write_text("".join(f"#include <{path}>\n" for path in own))
    include = [f"-I{prefix / folder}" for folder in ("include", "include/kvreplay")]
    run("g++", "-std=c++20", "-fopenmp", "-fsyntax-only", *include, tmp_path / "all.cpp")


def test_no_installed_file_contains_the_build_folder(prefix):
    for path in prefix.glob("lib/cmake/kvreplay/*"):
        assert str(ROOT) not in path.read_text(), path


def test_a_second_project_calls_the_library(second_project, tmp_path):
    found = run(second_project / "second_tool", SAMPLE, "h2o", 64)
    lines = [line.split(",") for line in found.splitlines()]
    run(BINARY, "run", SAMPLE, "--method", "h2o", "--budget", "64", "-o", tmp_path, "--progress", "none")
    assert {(a, b, c): pytest.approx(float(d), rel=1e-6) for a, b, c, d in lines} == errors(tmp_path)


def test_a_second_project_builds_the_program_with_its_method(second_project, tmp_path):
    program = second_project / "second_kvreplay"
    assert "longest keys" in run(program, "list", "methods")
    run(program, "run", SAMPLE, "--method", "h2o,last_and_loud", *SELECT, "-o", tmp_path / "second")
    run(BINARY, "run", SAMPLE, "--method", "h2o", *SELECT, "-o", tmp_path / "first")
    second = errors(tmp_path / "second")
    assert {name for _, _, name in second} == {"h2o", "last_and_loud"}
    assert {k: v for k, v in second.items() if k[2] == "h2o"} == errors(tmp_path / "first")


def test_a_user_error_reaches_the_second_project_as_an_exception(second_project, tmp_path):
    done = subprocess.run(
        [second_project / "second_tool", tmp_path / "gone.h5", "h2o", "64"], capture_output=True, text=True
    )
    assert done.returncode == 3
    assert "no trace" in done.stderr


PACKAGES = (
    *(
        "lib/python/kvbase",
        "apps/kvreplay",
        "traces/kvtrace",
        "traces/kvrecord",
        "traces/kvtasks",
        "traces/kvconfirm",
        "traces/kvdump",
    ),
    "analysis/kvanalysis",
)


def python_files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}


@pytest.fixture(scope="module")
def clean_environment(tmp_path_factory):
    """A new virtual environment with only these packages, built from a copy of their sources."""
    source, environment = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("venv")
    shutil.copy(ROOT / "pyproject.toml", source)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package)
    venv.create(environment)  # this environment's pip installs into the new one
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin/python", "--disable-pip-version-check"]
    without_program = ["--config-settings=wheel.cmake=false", "--config-settings=wheel.py-api=py3"]
    run(*pip, "install", "--quiet", "--no-deps", *without_program, source)
    return environment


def called_from(environment, *words, folder):
    """Runs a command in an environment without this one's packages."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KVREPLAY"))}
    clean["PATH"] = f"{environment / 'bin'}:/usr/bin:/bin"
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=clean)


@pytest.mark.parametrize(
    ("old", "words", "verb"),
    [
        ("kvdump", (), ("record",)),
        ("kvconfirm", (), ("confirm",)),
        ("kvconfirm", ("lines",), ("tasks", "lines")),
        ("kvanalysis", ("report",), ("report",)),
        ("kvanalysis", ("sweep",), ("refine",)),
        ("kvanalysis", ("figure",), ("figures",)),
        ("kvanalysis", ("parquet",), ("export",)),
    ],
)
def test_verbs_and_old_names_of_a_clean_environment_show_help_and_version(
    clean_environment, tmp_path, old, words, verb
):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    shown = called_from(clean_environment, "kvreplay", *verb, "--help", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"usage: kvreplay {verb[0]}")
    said = called_from(clean_environment, "kvreplay", verb[0], "--version", folder=tmp_path)
    assert (said.returncode, said.stdout) == (0, f"kvreplay {version}\n"), said.stderr
    renamed = called_from(clean_environment, old, *words, "--help", folder=tmp_path)
    assert renamed.stdout == shown.stdout
    assert renamed.stderr.startswith(
        f"kvreplay: note: `{' '.join([old, *words])}` is now `kvreplay {verb[0]}`"
    )


def test_every_module_is_installed(clean_environment):
    (site,) = clean_environment.glob("lib/python*/site-packages")
    for package in PACKAGES:
        assert python_files(site / Path(package).name) == python_files(ROOT / package)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (
            ("kvreplay", "record", "--model", "m", "--prompts", "p.txt", "-o", "t.h5"),
            "pip install 'kvreplay[record]'",
        ),
        (("kvreplay", "report", "out"), "pip install 'kvreplay[analysis]'"),
        (("kvreplay", "list", "methods"), "install a wheel of kvreplay, or build the program"),
    ],
)
def test_a_missing_package_is_named_with_the_remedy(clean_environment, tmp_path, words, remedy):
    (tmp_path / "p.txt").write_text("a prompt")
    (tmp_path / "out").mkdir()
    done = called_from(clean_environment, *words, folder=tmp_path)
    assert done.returncode in (2, 3)
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_about_the_library_shows_the_second_projects_code():
    page = (ROOT / "docs/library.md").read_text()
    project = "".join(path.read_text() for path in sorted((ROOT / "tests/package").iterdir()))
    fences = re.findall(r"^```(?:cmake|cpp)\n(.*?)^```$", page, re.M | re.S)
    assert len(fences) == 3
    assert all(fence in project for fence in fences)
