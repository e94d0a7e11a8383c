"""Compiles each case twice: a policy that breaks the information rules must not compile."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/compile_fail").glob("*.cpp"))
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
FLAGS = ("-std=c++20", "-fopenmp-simd", f"-I{ROOT / 'lib'}")


def compiled(*words):
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run([COMPILER, *words], capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def precompiled(tmp_path_factory):
    """The precompiled header of all cases, which takes nine tenths of each compilation."""
    header = tmp_path_factory.mktemp("header") / "policy_under_test.hpp"
    own = ROOT / "tests/compile_fail/policy_under_test.hpp"
    done = compiled(*FLAGS, "-x", "c++-header", own, "-o", header.with_suffix(".hpp.gch"))
    assert done.returncode == 0, done.stderr
    return header


def errors(case, precompiled, *flags):
    """The compiler's error messages; empty if it accepts the file."""
    done = compiled(*FLAGS, "-fsyntax-only", "-include", precompiled, "-Winvalid-pch", *flags, case)
    found = re.split(r"^.*error: ", done.stderr, flags=re.M)[1:]
    assert bool(found) == (done.returncode != 0), done.stderr
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_a_policy_compiles_without_the_offence_and_for_it_does_not(case, precompiled):
    reason = re.search(r"^// refused: (.*)$", case.read_text(), re.M)[1]
    assert errors(case, precompiled) == []
    assert reason in errors(case, precompiled, "-DOFFENCE")[0]


def test_there_are_cases():
    assert len(CASES) >= 11
