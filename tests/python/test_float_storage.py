"""Traces stored in 16 bits are widened exactly: every method gives the results of the widened trace."""

import json

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from kvreplay_cli import BINARY, kvreplay

N, P, D, DV, KV_HEADS, GROUP = 80, 56, 8, 6, 2, 2
GIVEN = {  # parameters without a default, or needed for small traces
    "external": {"kept": "lists.h5"},
    "block_max": {"block": 8, "sinks": 2, "recent": 4},
    "block_mean": {"block": 8, "sinks": 2, "recent": 4},
    "clusterkv": {"sinks": 4, "clusters": 6},
    "skip_softmax": {"lambda": 0.05, "tile": 16},
    "socket": {"sinks": 4, "recent": 8},
    "vattention": {"sinks": 4, "local": 8, "top": 8},
    "dms": {"threshold": -2.8, "window": 8},
    "random_attention": {"recent": 16},
    "vase": {"recent": 16},
    "block_eviction": {"page": 8, "sinks": 8, "recent": 8},
    "lagkv": {"lag": 8},
    "pqcache": {"sinks": 4},
    "qjl": {"outliers": 2},
    "quest": {"dense_layers": [], "page": 4},
    "subgen_stream": {"delta": 2.0},
}

# Methods that need a second pass or the output projection, which few traces hold.
LOOK_AT_MORE = {"kvzip", "kvzip_plus", "kvcompose", "defensivekv"}

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


def methods():
    names = [line.split()[0] for line in kvreplay("list", "methods").stdout.splitlines()[1:] if line.strip()]
    return [{"name": name, **GIVEN.get(name, {})} for name in names if name not in LOOK_AT_MORE]


def rounded(x, dtype):
    """float32 numbers that the 16-bit type holds exactly, and their form in the trace."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32), x.astype(np.float16)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32), bits


def write_trace(path, tensors, source_dtype):
    inv_freq = (10000.0 ** (-np.arange(0, D, 2) / D)).tolist()
    rope = {"type": "default", "theta": 1e4, "layout": "half_split", "rotary_dims": D, "inv_freq": inv_freq}
    with h5py.File(path, "w") as f:
        f.attrs["kvreplay_schema"] = 1
        f.attrs["n_layers"] = 4
        f.attrs["rope_json"] = json.dumps(rope)
        layer = f.create_group("prompts/p0/layers/002")
        layer.attrs["scaling"] = 1 / np.sqrt(D)
        layer.attrs["source_dtype"] = source_dtype
        for name, x in tensors.items():
            layer[name] = x
        f["prompts/p0"].attrs["n_prompt"] = P
        f["prompts/p0/token_class"] = (np.arange(tensors["k"].shape[1]) % 3).astype(np.uint8)


def write_lists(path):
    """Writes lists for `external`: the last 20 tokens of the prompt."""
    with h5py.File(path, "w") as f:
        for head in range(KV_HEADS):
            f[f"p0/002/{head}/kept_flat"] = np.arange(P - 20, P)
            f[f"p0/002/{head}/kept_off"] = [0, 20]


def run(folder, name, tensors, source_dtype):
    """(rows, outputs, kept lists) of all methods, in the order of the entries."""
    write_trace(folder / f"{name}.h5", tensors, source_dtype)
    write_lists(folder / "lists.h5")
    config = {
        "schema": 1,
        "traces": [f"{name}.h5"],
        "methods": methods(),
        "budget": {"tokens": [40]},
        "seeds": {"first": 2, "count": 1},
        "output": {"dir": name, "save": ["kept", "outputs"]},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    done = kvreplay("run", folder / f"{name}.yaml", "--force", "--progress", "none")
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(folder / name / "results.csv")
    with h5py.File(folder / name / "outputs.h5") as f:
        outputs = [f[key]["out"][:] for key in rows.key]
    with h5py.File(folder / name / "kept.h5") as f:
        kept = [{x: f[key][x][:] for x in f[key]} if key in f else {} for key in rows.key]
    return rows, outputs, kept


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_widened_exactly(tmp_path, dtype):
    rng = np.random.default_rng(5)
    shapes = {"q": (KV_HEADS * GROUP, N, D), "k": (KV_HEADS, N, D), "v": (KV_HEADS, N, DV)}
    numbers = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    pairs = {name: rounded(x, dtype) for name, x in numbers.items()}
    wide = run(tmp_path, "wide", {name: p[0] for name, p in pairs.items()}, "float32")
    small = run(tmp_path, "small", {name: p[1] for name, p in pairs.items()}, dtype)
    assert len(wide[0]) == len(small[0]) > 0
    full_bytes = wide[0].full_bytes.to_numpy() / small[0].full_bytes.to_numpy()
    assert (full_bytes == 2).all()  # the trace was read as its declared type
    for i, method in enumerate(wide[0].method):
        assert method == small[0].method[i]
        assert np.array_equal(wide[1][i], small[1][i]), method
        assert wide[2][i].keys() == small[2][i].keys()
        assert all(np.array_equal(x, small[2][i][name]) for name, x in wide[2][i].items()), method
