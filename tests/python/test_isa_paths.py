"""Instruction sets on the real sample: statistics agree within a tolerance, and the first different decision
is reported."""

import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from kvreplay_cli import ROOT, kvreplay

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
METHODS = "exact,window,streaming_llm,h2o,tova,scissorhands,snapkv,uniform,balancekv,subgen,buzz"
EQUAL_SETS_TOLERANCE = 1e-5  # relative tolerance of a cell with equal kept sets
FLIPPED_SETS_TOLERANCE = 2e-3  # relative tolerance of a cell in which rounding flipped a close decision
FLOAT32 = 0.05  # smaller statistics consist of rounding errors
COLUMNS = [
    "rel_err_out_mean",
    "rel_err_fro",
    "eps_spectral_mean",
    "eps_frobenius_mean",
    "partition_err_mean",
    "kept_mass_mean",
]
PATHS = ["portable", "avx2", "avx512", "avx512bf16", "amx"]
NAMED_ONLY = {"avx512bf16"}


def replayed(path, out):
    words = [
        "--method",
        METHODS,
        "--budget",
        "64,128",
        "-s",
        "select.layers=[0,7]",
        "-s",
        "output.save=[kept]",
    ]
    return kvreplay("run", SAMPLE, *words, "--seeds", 1, "--progress", "none", "-o", out, KVREPLAY_ISA=path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{path: results folder} of every path that this machine supports."""
    found = {}
    for path in PATHS:
        out = tmp_path_factory.mktemp(path)
        result = replayed(path, out)
        if result.returncode == 0:
            assert json.loads((out / "results.meta.json").read_text())["isa"] == path
            found[path] = out
        else:
            assert "this machine lacks it" in result.stderr
    return found


def rows(out):
    return pd.read_csv(Path(out) / "results.csv").set_index("key").sort_index()


def first_difference(a, b):
    """(list, tokens in only one of both) of the first kept list that differs, or None."""
    for i in range(len(a["kept_off"]) - 1):
        lists = [set(g["kept_flat"][g["kept_off"][i] : g["kept_off"][i + 1]].tolist()) for g in (a, b)]
        if lists[0] != lists[1]:
            return i, sorted(lists[0] ^ lists[1])
    return None


def differences(one, other):
    """{key: first difference} of the cells that keep different tokens."""
    found = {}
    with h5py.File(one / "kept.h5") as a, h5py.File(other / "kept.h5") as b:
        assert set(a) == set(b)
        for key in a:
            names = ("kept_flat", "kept_off")
            same = all(np.array_equal(a[key][name][:], b[key][name][:]) for name in names)
            if not same:
                found[key] = first_difference(a[key], b[key])
    return found


@pytest.mark.parametrize("path", PATHS[1:])
def test_every_instruction_set_gives_the_numbers_of_the_portable_path(runs, path, record_property):
    if path not in runs:
        pytest.skip(f"this machine has no {path}")
    portable, here = rows(runs["portable"]), rows(runs[path])
    assert list(portable.index) == list(here.index)
    turned = differences(runs["portable"], runs[path])
    for key, (at, tokens) in sorted(turned.items()):
        cell = portable.loc[key]
        record_property(f"first divergent decision of {cell.method} {cell.params}", f"list {at}: {tokens}")
    assert len(turned) <= len(portable) // 20
    for column in COLUMNS:
        worst = (here[column] - portable[column]).abs() / (portable[column].abs() + FLOAT32)
        same = ~portable.index.isin(list(turned))
        assert worst[same].max() <= EQUAL_SETS_TOLERANCE, (column, worst[same].idxmax())
        assert worst.max() <= FLIPPED_SETS_TOLERANCE, (column, worst.idxmax())


def test_the_strongest_path_is_the_default(runs, tmp_path):
    assert replayed("", tmp_path).returncode == 0
    best = [path for path in PATHS if path in runs and path not in NAMED_ONLY][-1]
    assert json.loads((tmp_path / "results.meta.json").read_text())["isa"] == best
