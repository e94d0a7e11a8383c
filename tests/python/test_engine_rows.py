"""The engine against the numpy definitions of the row formats: outputs, errors, bytes under a few methods."""

import json
from dataclasses import dataclass
from functools import partial

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from engine_cases_tier2 import layers_of, write_trace
from kvreplay_cli import BINARY, kvreplay
from reference import tier2_formats as formats
from reference import tier2_select as select
from reference.common import exact_out
from reference.row_rotations import Draws
from reference.tier2_scores import protect, score

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

SEED = 3
BUDGET, SINKS, WINDOW = 24, 4, 8
CLOSE = 1e-8  # relative to the largest output
SCORE_BYTES, POSITION_BYTES = 8, 4  # bytes of a held row, for methods that store them


def snapkv(head, B, row_format, **draws):
    scored = protect(score({"name": "snapkv", "window": WINDOW}, [head]))
    kept = select.keep_top(scored.scores[0], scored.protected, B)
    return formats.replay_stored(head, kept, None, row_format, **draws)


@dataclass(frozen=True)
class Method:
    """entry: item of `methods:`. call(head, B, row_format, seed=, uniforms=): the numpy reference."""

    entry: dict
    call: object
    per_row: int = 0
    budget: bool = True


METHODS = {
    "exact": Method(
        {"name": "exact"}, lambda head, B, row_format, **o: formats.exact(head, row_format, **o), 0, False
    ),
    "h2o": Method({"name": "h2o"}, formats.h2o, SCORE_BYTES + POSITION_BYTES),
    "streaming_llm": Method(
        {"name": "streaming_llm", "sinks": SINKS}, partial(formats.streaming_llm, sinks=SINKS)
    ),
    "snapkv": Method({"name": "snapkv", "window": WINDOW}, snapkv, POSITION_BYTES),
}

KIVI = {"name": "kivi", "bits": 2, "g": 8, "R": 8}
GEAR = {"name": "gear", "bits": 2, "g": 8, "R": 16, "rank": 2, "outliers": 15}
PROTECTED = {"full_precision": {"sinks": 3, "recent": 6}}

# Formats of one kind; each run replays one family.
FAMILIES = {
    "fp8": [
        "fp8_e4m3",
        "fp8_e5m2",
        {"name": "fp8_e4m3", "scale": 0.5},
        {"name": "fp8_e4m3", "scale": "token"},
        {"name": "fp8_e5m2", "scale": "head"},
    ],
    "blocks of small floats": [
        "nvfp4",
        {"name": "nvfp4", "scale": "head"},
        {"name": "nvfp4", "search": "four_over_six"},
        "mxfp4",
        "mxfp8",
        {"name": "mxfp8", "element": "e5m2", "scale_rounding": "ceil"},
        {"name": "mxfp4", "scale_rounding": "ceil", "block": 24},
    ],
    "integers": ["int8", "int4", {"name": "int8", "group": 8}],
    "few integers": ["int3", "int2", {"name": "int3", "group": 8}],
    "llama.cpp": ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"],
    "vLLM": ["int8_token_head", "int4_token_head", {"name": "int4_token_head", "rotate": "none"}],
    "rotated": [
        {"name": "int4", "rotate": "hadamard"},
        {"name": "nvfp4", "rotate": "hadamard", "rotate_block": 8},
        {"name": "int3", "rotate": "hadamard_signed"},
        {"name": "mxfp8", "rotate": "haar"},
        {"name": "fp8_e4m3", "scale": "head", "rotate": "haar"},
    ],
    "turboquant": [
        "turboquant_k8v4",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
        "tq_mse",
        {"name": "tq_mse", "bits": 5, "rotation": "hadamard_signed", "norm_correction": True},
        {"name": "tq_mse", "bits": 1, "codebook": "gauss"},
        "tq_prod",
        {"name": "tq_prod", "bits": 2, "rotation": "hadamard", "codebook": "gauss"},
        "polar",
        {"name": "polar", "levels": [3, 2]},
    ],
    "calibrated": [
        "kvquant",
        {"name": "kvquant", "bits": 3, "keys": "post_rope", "outliers": 10},
        {"name": "kvquant", "bits": 2, "outliers": 0, "calibrate_from": 0},
        "pca",
        {"name": "pca", "bits": 3, "keys": "post_rope", "calibrate_from": 0},
    ],
    "kivi": [
        KIVI,
        {**KIVI, "bits": 4, "keys": "pre_rope"},
        {"key": KIVI, "value": {**KIVI, "bits": 4, "g": 16, "R": 16, "rotate": "hadamard"}},
        {**KIVI, "full_precision": {"sinks": 5}},
    ],
    "kivi in groups": [KIVI, {**KIVI, "bits": 4}],
    "gear": [GEAR, {**GEAR, "order": "residual"}, {**GEAR, "keys": "pre_rope", "rank": 0}],
    "parts": [
        {"key": "int8", "value": {"name": "int4", "rotate": "hadamard"}},
        {"key": {"name": "mxfp8"}},
        {"value": "turboquant_3bit_nc"},
        {"key": "turboquant_k3v4_nc", "value": "nvfp4"},
        {"key": KIVI, "value": "fp8_e4m3"},
        {"key": "pca", "value": KIVI},
        {"key": "int8", "value": "source", "rotate": "hadamard"},
    ],
    "odd widths": [
        {**KIVI, "keys": "pre_rope"},
        {**GEAR, "order": "residual"},
        "int4",
        "int3",
        "mxfp4",
        "tq_mse",
        "tq_prod",
        {"name": "kvquant", "bits": 3},
        {"name": "pca", "bits": 1},
    ],
    "protected": [
        {"name": "int4", **PROTECTED},
        {"name": "kvquant", "bits": 3, **PROTECTED},
        {"key": "int3", "value": "tq_mse", **PROTECTED, "skip_layers": [-2]},
        {"name": "int4", "skip_layers": [0, -1], "keys": "pre_rope"},
    ],
    "own row": [
        {"name": "int4", "own_row": "coded"},
        {"name": "turboquant_4bit_nc", "own_row": "coded", "full_precision": {"sinks": 2}},
    ],
}
EVERYWHERE = {"integers", "calibrated", "kivi", "kivi in groups", "parts", "protected", "own row"}
TRACES = dict.fromkeys(FAMILIES, ("blocks",)) | {"parts": ("widths",), "protected": ("widths",)}
TRACES |= {
    "odd widths": ("odd",),
    "turboquant": ("blocks", "widths"),
    "rotated": ("blocks", "widths"),
    "calibrated": ("widths",),
}
RUNS = [(family, trace) for family in FAMILIES for trace in TRACES[family]]


def methods_of(family):
    return list(METHODS) if family in EVERYWHERE else ["exact", "h2o"]


def configuration(methods):
    return {
        "schema": 1,
        "traces": ["t.h5"],
        "methods": methods,
        "budget": {"tokens": [BUDGET]},
        "seeds": {"first": SEED, "count": 1},
        "run": {"precision": "double"},
        "output": {"dir": "out", "save": ["outputs"]},
    }


def run(folder, trace, entries):
    """Runs the configuration; returns the rows of results.csv and the outputs of every row."""
    write_trace(folder / "t.h5", trace)
    (folder / "run.yaml").write_text(yaml.safe_dump(configuration(entries), sort_keys=False))
    done = kvreplay("run", folder / "run.yaml", "--force", "--progress", "none")
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(folder / "out" / "results.csv")
    assert (rows.status == "ok").all(), rows.error.tolist()
    with h5py.File(folder / "out" / "outputs.h5") as f:
        return rows, [f[key]["out"][:] for key in rows.key]


def compare(row, out, want, head):
    assert out.shape == want.out.shape
    assert np.abs(out - want.out).max() <= CLOSE * np.abs(want.out).max(), "outputs"
    right = exact_out(head)
    error = np.linalg.norm(want.out - right, axis=2) / np.linalg.norm(right, axis=2)
    assert row.rel_err_out_mean == pytest.approx(error.mean(), rel=CLOSE, abs=CLOSE)
    account = want.extras["account"]
    account = {"peak_bytes": account.peak, "aux_bytes": account.aux, "final_bytes": account.final}
    assert {name: row[name] for name in account} == account


def compare_all(folder, trace, row_formats, methods, uniforms=None):
    """Compares every format under every method: the engine's heads against the definitions."""
    more = {} if uniforms is None else {"uniforms": str(folder / "u.h5")}
    asked = [(METHODS[m], f) for m in methods for f in row_formats]
    rows, outs = run(folder, trace, [{**m.entry, "row_format": f, **more} for m, f in asked])
    heads = [head for layer in layers_of(trace) for head in layer]
    assert len(rows) == len(asked) * len(heads)
    for head in heads:
        mine = np.flatnonzero((rows.layer == head.layer) & (rows.kv_head == head.kv_head))
        for at, (method, row_format) in zip(mine, asked, strict=True):
            where = f"{method.entry['name']} {json.dumps(row_format)} layer {head.layer} head {head.kv_head}"
            want = method.call(head, BUDGET, row_format, seed=SEED, uniforms=uniforms, per_row=method.per_row)
            try:
                compare(rows.iloc[at], outs[at], want, head)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error


@pytest.mark.parametrize("family,trace", RUNS)
def test_the_engine_stores_rows_as_defined(family, trace, tmp_path):
    compare_all(tmp_path, trace, FAMILIES[family], methods_of(family))


def test_the_engine_draws_from_the_arrays_of_a_file(tmp_path):
    row_formats = [{"name": "int4", "rotate": "hadamard_signed"}, "tq_prod", "polar"]
    d = layers_of("blocks")[0][0].d
    draws = Draws(SEED + 1)
    counts = {"signs": d, "rotation": d * d, "sketch": d * d}
    uniforms = {name: draws.uniforms(name, count) for name, count in counts.items()}
    with h5py.File(tmp_path / "u.h5", "w") as f:
        for name, numbers in uniforms.items():
            f[name] = numbers
    compare_all(tmp_path, "blocks", row_formats, ["exact"], uniforms)
