"""A device gives the same results as the CPU, from the command line to the table.

The device is the emulator, which runs the kernels of CUDA devices on the CPU, unless KVREPLAY_TEST_DEVICE
names another.
"""

import os

import h5py
import numpy as np
import pytest
from kvreplay_cli import BINARY, ROOT, TOY, kvreplay, table

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"

DEVICE = os.environ.get("KVREPLAY_TEST_DEVICE", "emulated")
PROGRAM = TOY if DEVICE == "emulated" else BINARY
# Half of the sample: the emulator is about a thousand times slower than a device.
LENGTH = ["--tokens", "512", "--prefill", "384"]
COMMON = ["--budget", "64,256", "--layers", "7", "--kv-heads", "0", "--seeds", "1", *LENGTH]
RELATIVE, ABSOLUTE = 1e-3, 1e-6


def replayed(folder, device, *arguments):
    words = ["run", SAMPLE, *arguments, "--device", device, "-o", folder / device]
    result = kvreplay(*words, timeout=600, program=PROGRAM)
    assert result.returncode == 0, result.stderr
    return table(folder / device)


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def differences(row, other):
    """Columns in which two rows differ by more than the tolerance."""
    found = []
    for name, text in row.items():
        a, b = number(text), number(other[name])
        if name == "device":
            continue
        if a is None or b is None:
            found += [(name, text, other[name])] if text != other[name] else []
        elif abs(a - b) > RELATIVE * abs(b) + ABSOLUTE:
            found.append((name, a, b))
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    methods = ["--method", "exact,h2o,tova,snapkv,streaming_llm,uniform,subgen,quest,wildcat,keyformer,qjl"]
    return [replayed(folder, device, *methods, *COMMON) for device in (DEVICE, "cpu")]


def test_a_device_and_the_cpu_give_equal_tables_on_a_real_trace(both):
    device, cores = both
    assert len(device) == len(cores) > 10
    for row, other in zip(device, cores, strict=True):
        assert differences(row, other) == [], (row["method"], row["budget"])


def test_the_table_says_which_cells_a_device_computed(both):
    of = {(row["method"]): row["device"] for row in both[0]}
    for method in ("exact", "h2o", "tova", "keyformer", "snapkv", "uniform", "subgen"):
        assert of[method] == DEVICE, method
    for method in ("quest", "wildcat", "qjl"):  # the cores' work in the same run
        assert of[method] == "cpu", method
    assert {row["device"] for row in both[1]} == {"cpu"}


@pytest.mark.skipif(DEVICE != "emulated", reason="only for the emulator")
def test_the_released_program_has_no_emulated_device(tmp_path):
    result = kvreplay("run", SAMPLE, "--method", "exact", "--device", "emulated", "-o", tmp_path / "out")
    assert result.returncode == 4
    assert "there is no device emulated here" in result.stderr


def test_a_device_computes_no_double_precision(tmp_path):
    words = ["run", SAMPLE, "--method", "exact", "--device", DEVICE, "--precision", "double"]
    result = kvreplay(*words, cwd=tmp_path, program=PROGRAM)
    assert result.returncode == 2
    assert f"--precision is double, which device {DEVICE} does not compute" in result.stderr


def layer_of(rng, width, latent):
    """Datasets of a layer whose heads a device has no kernels for: wide ones, or those that share latents."""
    if not latent:
        return {name: rng.standard_normal((2, 40, width)) for name in "qkv"}
    shapes = {
        "latent": (40, 24),
        "rope_k": (40, 8),
        "up_k": (2, 24, 12),
        "up_v": (2, 24, 10),
        "q": (2, 40, 20),
    }
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("latent", [False, True])
def test_heads_without_kernels_are_replayed_on_the_cores(tmp_path, latent):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.attrs["kvreplay_schema"] = 1
        group = file.create_group("prompts/p0/layers/000")
        group.attrs.update({"scaling": 0.05, "rope": "none"})
        for name, array in layer_of(rng, 272, latent).items():
            group[name] = array.astype(np.float32)
    found = []
    for device in (DEVICE, "cpu"):
        words = ["run", tmp_path / "t.h5", "--method", "h2o,snapkv", "--budget", "16", "--prefill", "36"]
        result = kvreplay(*words, "--device", device, "-o", tmp_path / device, program=PROGRAM)
        assert result.returncode == 0, result.stderr
        found.append(table(tmp_path / device))
    on_device, on_cores = found
    assert {row["device"] for row in on_device} == {"cpu"}
    assert [row["rel_err_out_mean"] for row in on_device] == [row["rel_err_out_mean"] for row in on_cores]
