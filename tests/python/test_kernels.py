"""Instruction sets: the selection of a path, and that its code cannot leak into the rest of the program."""

import json
import math
import platform
import re
import subprocess

import pytest
from kvreplay_cli import BINARY, kvreplay, synth, table

LIBRARY = BINARY.parent / "lib/libkvreplay.a"
PATHS = ["avx2", "avx512", "avx512bf16", "amx"]


def shown_path(**environment):
    devices = json.loads(kvreplay("list", "devices", "--json", **environment).stdout)
    return devices[0]["description"].rsplit(" ", 1)[1]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these instruction sets belong to x86-64")
@pytest.mark.parametrize("path", PATHS)
def test_a_unit_for_an_instruction_set_shares_no_symbol_with_others(path):
    """The linker might keep a weak symbol's copy for the whole program, on machines that cannot run it."""
    listing = subprocess.run(["nm", "-C", LIBRARY], capture_output=True, text=True, check=True).stdout
    symbols = re.search(rf"^{path}\.cpp\.o:\n(.*?)(?:\n\n|\Z)", listing, re.M | re.S).group(1)
    kinds = re.findall(r"^[0-9a-f]* +(\w) (.*)$", symbols, re.M)
    assert kinds
    assert [name for kind, name in kinds if kind in "VvWwu"] == []
    visible = [name for kind, name in kinds if kind.isupper() and kind != "U"]
    assert len(visible) == 1, visible  # the table, or the single function


def test_a_path_is_forced_by_name():
    assert shown_path(KVREPLAY_ISA="portable") == "portable"
    assert shown_path(KVREPLAY_ISA="") == shown_path()


@pytest.mark.parametrize("name", ["avx3", "AVX2", "portable "])
def test_an_unknown_path_is_refused_before_any_work(name, tmp_path):
    result = kvreplay("list", "devices", KVREPLAY_ISA=name)
    assert result.returncode == 2
    assert f"KVREPLAY_ISA={name}" in result.stderr
    assert "portable, avx2" in result.stderr
    trace = synth(tmp_path / "t.h5", "--tokens", 160, "--prompt", 128)
    assert kvreplay("run", trace, "-o", tmp_path / "out", KVREPLAY_ISA=name).returncode == 2
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def portable_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("portable")
    trace = synth(folder / "t.h5", "--tokens", 300, "--prompt", 200)
    return trace, errors(trace, folder / "out", "portable")


def errors(trace, out, path):
    words = ["run", trace, "--method", "exact,streaming_llm,uniform", "--budget", "64", "-o", out]
    result = kvreplay(*words, KVREPLAY_ISA=path)
    if "this machine lacks it" in result.stderr:
        pytest.skip(f"this machine has no {path}")
    assert result.returncode == 0, result.stderr
    names = ["method", "layer", "kv_head", "seed", "budget_tokens"]
    return {tuple(row[n] for n in names): float(row["rel_err_out_mean"]) for row in table(out)}


@pytest.mark.parametrize("path", PATHS)
def test_every_path_gives_the_portable_paths_errors(path, portable_run, tmp_path):
    trace, expected = portable_run
    found = errors(trace, tmp_path / "out", path)
    assert found.keys() == expected.keys()
    for cell, error in expected.items():
        assert math.isclose(found[cell], error, rel_tol=1e-4, abs_tol=5e-5), cell
