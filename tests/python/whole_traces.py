"""A trace with everything that a trace may hold, and an entry of `methods:` for everything that reads it."""

from pathlib import Path

import h5py
import kvreplay
import numpy as np
from kvreplay_cli import formats_of_heads
from kvreplay_cli import kvreplay as program
from program_beside_python import made_layer, run_program

HEADS, KV_HEADS, TOKENS, PROMPT, DIM, V_DIM, HIDDEN = 4, 2, 160, 112, 32, 64, 9
LAYERS = (3, 8)
REPLAYED, OTHER = "p0", "other"  # the prompt that is replayed, and the one that methods are calibrated on
QUESTION_FROM = 100
NEEDLE_TOKENS = ((20, 24), (70, 73))
CHUNKS = ((0, 60, PROMPT), (0, 64, 124))  # tokens and rows of the chunks of the repeated context
LOOKAHEAD, SAMPLES = 8, 3
BUDGET = 40


def write_whole_trace(folder):
    """Writes a trace of two prompts; returns its path."""
    rng = np.random.default_rng(5)
    prompts = {
        name: {
            "layers": {n: made_layer(10 * seed + n, dim=DIM, v_dim=V_DIM) for n in LAYERS},
            "n_prompt": PROMPT,
            "token_classes": rng.integers(0, 3, TOKENS).astype(np.uint8),
        }
        for seed, name in enumerate((REPLAYED, OTHER))
    }
    path = kvreplay.Trace.write(
        folder / "whole.h5", prompts=prompts, n_layers=10, rope={"theta": 10000.0}
    ).path
    with h5py.File(path, "r+") as file:
        del file.attrs["trace_id"]  # the arrays below belong to the content
        for prompt in file["prompts"].values():
            prompt.attrs["question_from"] = QUESTION_FROM
            prompt.attrs["needle_tokens"] = np.array(NEEDLE_TOKENS, "i4")
            _add_passes(prompt)
            for layer in prompt["layers"].values():
                _add_arrays(layer, rng)
    return path


def _add_passes(prompt):
    repeat, ahead = prompt.create_group("repeat"), prompt.create_group("lookahead")
    repeat.attrs["context_tokens"] = ahead.attrs["context_tokens"] = PROMPT
    repeat["ctx"], repeat["rows"] = (np.array(bounds, "i4") for bounds in CHUNKS)
    ahead["tokens"] = np.arange(LOOKAHEAD, dtype="i4")


def _add_arrays(layer, rng):
    def normal(*shape):
        return rng.normal(size=shape).astype("f4")

    rows = CHUNKS[1][-1]
    layer["repeat_q"], layer["repeat_k"] = normal(HEADS, rows, DIM), normal(KV_HEADS, rows, DIM)
    layer["repeat_in_norm"], layer["resid_in_norm"] = 1 + abs(normal(rows)), 1 + abs(normal(TOKENS))
    layer["lookahead_q"] = normal(HEADS, LOOKAHEAD, DIM)
    layer["o_proj"], layer["resid_norm"] = normal(HEADS, V_DIM, HIDDEN), 1 + abs(normal(TOKENS))
    answers = np.arange(PROMPT, TOKENS - 1, dtype="i4")
    # Multiples of 1/16 below 4 are exact in bfloat16.
    layer["g"] = (rng.integers(-64, 65, (SAMPLES, HEADS, len(answers), V_DIM)) / 16).astype("f4")
    layer["g_recorded"], layer["g_rows"] = 2 * layer["g"][0], answers
    layer["g_answer"] = 4 * layer["g"][1]


def write_beside(folder, trace):
    """Writes the files that entries name: lists, uniforms, statistics, budgets and importances."""
    out = run_program(trace, folder, **_of_one(["h2o", "window"]), save=["kept"])
    with h5py.File(folder / "lists.h5", "w") as lists, h5py.File(out / "kept.h5") as kept:
        for line in (out / "results.csv").read_text().splitlines()[1:]:
            key, _, _, prompt, layer, head, method, *_ = line.split(",")
            if method == "h2o":
                kept.copy(key, lists, f"{prompt}/{int(layer):03d}/{head}")
    with h5py.File(folder / "uniforms.h5", "w") as file:
        file["u"] = np.random.default_rng(8).random(TOKENS)
        file["signs"] = np.random.default_rng(9).random(V_DIM + DIM)
    _succeeds("calibrate", trace, "-o", folder / "statistics.h5", "--prompts", OTHER)
    config = folder / "config.yaml"
    run_program(trace, folder, **_of_one([{"name": "snapkv", "window": 8, "allocator": "ada"}]), save=[])
    _succeeds("budgets", config, "-o", folder / "budgets.csv")


def _of_one(methods):
    return {"methods": methods, "budget": {"tokens": [BUDGET]}, "select": {"prompts": [REPLAYED]}}


def _succeeds(*words):
    done = program(*words)
    assert done.returncode == 0, done.stderr


# {method: its entry}, where a method needs a parameter here.
PARAMETERS = {
    "block_max": {"name": "block_max", "block": 8, "sinks": 2, "recent": 4},
    "block_mean": {"name": "block_mean", "block": 8, "sinks": 2, "recent": 4},
    "clusterkv": {"name": "clusterkv", "sinks": 4, "clusters": 6},
    "skip_softmax": {"name": "skip_softmax", "lambda": 0.05, "tile": 16},
    "socket": {"name": "socket", "sinks": 4, "recent": 8},
    "vattention": {"name": "vattention", "sinks": 4, "local": 8, "top": 8},
    "dms": {"name": "dms", "threshold": -4, "window": 8},
    "random_attention": {"name": "random_attention", "recent": 16},
    "vase": {"name": "vase", "recent": 16},
    "block_eviction": {"name": "block_eviction", "page": 8, "sinks": 8, "recent": 8},
    "kernel_halving": {"name": "kernel_halving", "sinks": 2, "recent": 8},
    "pqcache": {"name": "pqcache", "sinks": 2},
    "subgen_stream": {"name": "subgen_stream", "delta_rel": 0.5},
    "duo_attention": {"name": "duo_attention", "sinks": 4, "recent": 16},
}


def every_method(folder):
    """An entry for every method of the registry."""
    own = {**PARAMETERS, "external": {"name": "external", "kept": str(folder / "lists.h5")}}
    return [own.get(name, name) for name in kvreplay.methods()]


def entries_of(what, folder):
    """The entries of "methods", or of a key of `everything_else`."""
    return every_method(folder) if what == "methods" else everything_else(folder)[what]


def everything_else(folder):
    """{what is tested: entries of the options, files and further arrays that methods read}."""
    folder = Path(folder)
    snapkv = {"name": "snapkv", "window": 8}
    statistics = f"file:{folder / 'statistics.h5'}"
    return {
        "wrappers": [
            {**snapkv, "wrapper": ["critical", "caote", {"name": "critical", "alpha": 0.25}]},
            {"name": "h2o", "wrapper": {"name": "caote", "level": "kv", "fast": True}},
            {**snapkv, "score": ["obc_value", "obc_key", "obc_joint"]},
            {**snapkv, "wrapper": "critical", "allocator": "ada"},
        ],
        "merging": [
            {
                "name": "h2o",
                "merge": ["cam", "d2o", "pivot", "weighted_v", {"name": "pivot", "mass": "keep"}],
            },
            {**snapkv, "merge": "gaussian"},
        ],
        "allocators": [
            {
                **snapkv,
                "allocator": ["pyramid", "ada", "cake", "lu_kv", "zigzag", f"file:{folder / 'budgets.csv'}"],
            },
            {**snapkv, "allocator": {"name": "duo", "sinks": 4, "recent": 8}},
            {**snapkv, "allocator": {"name": "headkv", "sinks": 4, "recent": 8}},
            {**snapkv, "allocator": {"name": "lu_kv", "calibration": f"prompt:{OTHER}", "weight": "contrib"}},
        ],
        "calibration": [
            {"name": name, "calibration": [statistics, "others", f"prompt:{OTHER}"]}
            for name in ("triattention", "qfilters", "doublesparsity", "expected_attention")
        ],
        "passes": [
            {"name": name, "level": level, "calibration": calibration}
            for name in ("kvzip", "kvzip_plus")
            for level, calibration in (("layer", "self"), ("pair", "self"), ("head", "others"))
        ]
        + [
            {"name": "laq", "generated": True, "gqa.level": ["kv", "query", "layer"]},
            {"name": "finch", "window": ["question", 16], "chunks": 2},
        ],
        "files": [
            {"name": "uniform", "uniforms": str(folder / "uniforms.h5")},
            {
                "name": "external",
                "kept": str(folder / "lists.h5"),
                "positions": "cache",
                "row_format": "int8",
            },
        ],
        "levels": [
            {"name": "h2o", "gqa.level": ["query", "layer"], "gqa.agg": ["mean", "max"]},
            {"name": "streaming_llm", "positions": "cache", "order": "evict_then_attend"},
            {"name": "tova", "phase": "oneshot", "reweight": "uniform"},
            {"name": "adakv", "scorer": {"name": "snapkv", "window": 8, "pool": "avg"}},
        ],
        "row formats": [{"name": "h2o", "row_format": [row_format_of(name) for name in formats_of_heads()]}],
    }


def row_format_of(name):
    """A row format with parameters that fit the few tokens and narrow heads of the trace."""
    small = {"kivi": {"g": 16, "R": 16}, "gear": {"g": 16, "R": 16}}
    return {"name": name, **small[name]} if name in small else name
