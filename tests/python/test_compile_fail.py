"""Dual compile tests: a policy that breaks the information rules does not compile."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/compile_fail").glob("*.cpp"))
COMPILER = shutil.which(os.environ.get("CXX", "g++"))


def compiles(case, *flags):
    command = [COMPILER, "-std=c++20", "-fsyntax-only", "-fopenmp-simd", f"-I{ROOT / 'lib'}", *flags, case]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_a_policy_compiles_without_the_offence_and_not_with_it(case):
    assert compiles(case)
    assert not compiles(case, "-DOFFENCE")


def test_there_are_cases():
    assert len(CASES) >= 7
