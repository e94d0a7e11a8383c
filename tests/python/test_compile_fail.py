"""Dual compile tests: a policy that breaks the information rules does not compile."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/compile_fail").glob("*.cpp"))
COMPILER = shutil.which(os.environ.get("CXX", "g++"))


def errors(case, *flags):
    """What the compiler says of each error; nothing where it accepts the file."""
    command = [COMPILER, "-std=c++20", "-fsyntax-only", "-fopenmp-simd", f"-I{ROOT / 'lib'}", *flags, case]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    found = re.split(r"^.*error: ", done.stderr, flags=re.M)[1:]
    assert bool(found) == (done.returncode != 0), done.stderr
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_a_policy_compiles_without_the_offence_and_for_it_does_not(case):
    reason = re.search(r"^// refused: (.*)$", case.read_text(), re.M)[1]
    assert errors(case) == []
    assert reason in errors(case, "-DOFFENCE")[0]


def test_there_are_cases():
    assert len(CASES) >= 11
