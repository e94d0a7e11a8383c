"""Checks what nvcc makes of device code, where it is installed; nothing runs the code."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "lib"
NVCC = shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc")
REGISTERS = 65536  # those of a processor
pytestmark = pytest.mark.skipif(NVCC is None, reason="needs nvcc")


def resources(unit, folder):
    """{kernel: {registers, barriers, spilled}} as ptxas reports them for compute capability 9.0."""
    words = [NVCC, "-std=c++20", "-O3", "-cubin", "-arch=sm_90", "--expt-relaxed-constexpr", "-Xptxas=-v"]
    done = subprocess.run(
        [*words, "-I", LIB, "-o", folder / "code.cubin", LIB / "device/cuda" / unit],
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for entry in done.stderr.split("Compiling entry function '")[1:]:
        name = re.match(r"\w*?kvreplay\d+(\w+?)E", entry.replace("4cuda10run_kernelINS_", "")).group(1)
        used = re.search(r"Used (\d+) registers, used (\d+) barriers", entry)
        spilled = re.search(r"(\d+) bytes spill stores", entry)
        found[name] = {
            "registers": int(used.group(1)),
            "barriers": int(used.group(2)),
            "spilled": int(spilled.group(1)),
        }
    return found


def test_decisions_wait_at_no_barrier_and_fit_side_by_side(tmp_path):
    (found,) = resources("decide.cu", tmp_path).values()
    assert found["barriers"] == 0
    assert REGISTERS // (32 * found["registers"]) >= 8  # warps of a processor at the same time
    # Only caches of 545 to 1,056 slots have more numbers than registers.
    assert found["spilled"] <= 2048
