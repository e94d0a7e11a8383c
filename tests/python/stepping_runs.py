"""Stepwise replays beside replays of the complete rows, on two small layers."""

import json
import warnings

import h5py
import kvreplay as kv
import numpy as np
import pytest

PROMPT, LATER, BUDGET, SEED = 40, 14, 16, 3
ALL = PROMPT + LATER
Q_HEADS, KV_HEADS, DIM, V_DIM, HIDDEN = 4, 2, 8, 6, 10
LAYERS = (0, 1)
ROPE = {"type": "default", "theta": 100.0, "inv_freq": [1.0, 0.3, 0.1, 0.03], "layout": "half_split"}
WIDE_ROPE = {**ROPE, "inv_freq": [0.9**i for i in range(16)]}
REPEATED = (0, 22, 44)  # rows of the pass that repeats the prompt

# Parameters that fit a small budget; other methods take their defaults.
SMALL = {
    "balancekv_stream": {"r": 2.0, "batch": 8, "levels": 3, "c": 8.0, "on_fail": "clamp"},
    "block_eviction": {"page": 2, "sinks": 2, "recent": 2},
    "block_max": {"block": 2, "sinks": 2, "recent": 3},
    "block_mean": {"block": 2, "sinks": 2, "recent": 3},
    "cake": {"w": 8},
    "clusterkv": {"sinks": 2, "clusters": 5, "update": 4, "update_clusters": 2},
    "compactor": {"sinks": 2, "recent": 2, "chunk": 24},
    "defensivekv": {"window": 4},
    "dms": {"threshold": -2.8, "window": 8},
    "duo_attention": {"sinks": 2, "recent": 6},
    "finch": {"window": 4},
    "gkv": {"buffer": 4, "buffer_in_budget": True, "window": 3},
    "kernel_halving": {"sinks": 0, "recent": 2},
    "lagkv": {"lag": 8},
    "laq": {"generated": True},
    "lava": {"window": 4},
    "magicpig": {"K": 3, "L": 10, "local": 8},
    "paged_eviction": {"page": 4},
    "pqcache": {"sinks": 2, "bits": 2, "recent": 7},
    "qfilters": {"recent": 4},
    "qjl": {"outliers": 1, "group": 4, "buffer": 16},
    "random_attention": {"buffer": 4, "buffer_in_budget": True, "recent": 2, "keep_prompt": False},
    "rkv": {"buffer": 4, "buffer_in_budget": True, "window": 3},
    "rocketkv": {"window": 4, "kernel": 5},
    "shadowkv": {"chunk": 4, "local": 1, "outliers": 1, "rank": 3},
    "skip_softmax": {"lambda": 0.05, "tile": 8},
    "snapkv": {"window": 4},
    "socket": {"K": 3, "L": 10, "sinks": 2, "recent": 4},
    "sparq": {"r": 2},
    "subgen_stream": {"delta": 2.0},
    "triattention": {"buffer": 4, "buffer_in_budget": True},
    "vase": {"buffer": 4, "buffer_in_budget": True, "recent": 3, "sinks": 1},
    "wildcat": {"sinks": 2, "recent": 4},
}
ORACLES = (
    "static_oracle",
    {"name": "laq", "generated": False},
    "balancekv_stream",
    {"name": "h2o", "variant": "oracle_global"},
    {"name": "subgen_stream", "delta_rel": 0.7},
    {"name": "snapkv", "window": 4, "allocator": {"name": "lu_kv", "calibration": "self"}},
)
NOT_SERVED = ("external", "static_oracle")  # lists from a file; an oracle
KIVI = {"name": "kivi", "bits": 2, "g": 2, "R": 4}
SNAPKV = {"name": "snapkv", "window": 4}
UNION = {"name": "triattention", "buffer": 3, "level": "union"}
METHODS = (
    *({"name": name, **SMALL.get(name, {})} for name in kv.methods() if name not in NOT_SERVED),
    *({**SNAPKV, "allocator": rule} for rule in ("pyramid", "ada", "cake", "zigzag", "windows")),
    {**SNAPKV, "wrapper": "critical"},
    {**SNAPKV, "phase": "stream", "cut_every": 3},
    {**SNAPKV, "then": {"name": "h2o"}},
    {"name": "tova", "cut_every": 3},
    {"name": "knorm", "phase": "stream"},
    {"name": "h2o", "order": "evict_then_attend"},
    {"name": "h2o", "prompt": "stream"},
    {"name": "window", "prompt": "stream"},
    {"name": "h2o", "prefill_chunk": 16},
    {"name": "h2o", "merge": "d2o"},
    {"name": "knorm", "think": {"ratio": 0.5}},
    UNION,
    {**UNION, "level": "head", "row_format": KIVI},
    {**UNION, "phase": "oneshot"},
    *({"name": name, "row_format": form} for name in ("h2o", "window", "knorm") for form in ("int8", KIVI)),
    *({"name": "exact", "row_format": form} for form in ("int8", KIVI)),
    *({"name": name, "positions": "cache"} for name in ("streaming_llm", "h2o", "knorm")),
    *({"name": name, "gqa.level": level} for name in ("h2o", "tova") for level in ("query", "layer")),
    *({**SNAPKV, "gqa.level": level} for level in ("query", "layer")),
    *({"name": name, "page": 4, "page_heads": "tied"} for name in ("h2o", "tova")),
    {"name": "h2o", "page": 4},
)  # fmt: skip
FACTS = {
    "sliding window": {"sliding_window": 12},
    "chunks": {"attention_chunk": 20},
    "sink logits": {"sinks": np.linspace(-1, 2, Q_HEADS)},
    "soft cap": {"softcap": 5.0, "scaling": 0.7},
    "positions": {"position_ids": 3 * np.arange(ALL) + 5},
}


def rows(layer=0, dim=DIM, v_dim=V_DIM):
    """q, k, v of a layer: keys have a mean that queries like, so attention is far from uniform."""
    draw = np.random.default_rng([7, layer])
    q, k, v = (
        draw.standard_normal((heads, ALL, width)).astype(np.float32)
        for heads, width in ((Q_HEADS, dim), (KV_HEADS, dim), (KV_HEADS, v_dim))
    )
    return 2 * q + 1, k + np.float32(0.5), v


def part(arrays, first, last):
    return tuple(x[:, first:last] for x in arrays)


def write_trace(path):
    """Two layers with everything that some method needs."""
    draw = np.random.default_rng(5)
    with h5py.File(path, "w") as f:
        f.attrs.update({"kvreplay_schema": 1, "n_layers": len(LAYERS), "rope_json": json.dumps(ROPE)})
        prompt = f.create_group("prompts/p0")
        prompt.attrs.update({"n_prompt": PROMPT, "n_generated": LATER, "question_from": PROMPT - 4})
        prompt["token_class"] = (np.arange(ALL) % 5 == 0).astype(np.uint8)
        again, ahead = prompt.create_group("repeat"), prompt.create_group("lookahead")
        for group, count in ((again, REPEATED[-1]), (ahead, 8)):
            group.attrs["context_tokens"] = PROMPT
            group["tokens"] = np.zeros(count, np.int32)
        again["rows"], again["ctx"] = np.int32(REPEATED), np.int32([0, PROMPT // 2, PROMPT])
        for layer in LAYERS:
            g = f.create_group(f"prompts/p0/layers/{layer:03d}")
            g.attrs["scaling"] = DIM**-0.5
            for name, x in zip("qkv", rows(layer), strict=True):
                g[name] = x
            shapes = {
                "o_proj": (Q_HEADS, V_DIM, HIDDEN), "repeat_q": (Q_HEADS, REPEATED[-1], DIM),
                "repeat_k": (KV_HEADS, REPEATED[-1], DIM), "lookahead_q": (Q_HEADS, 8, DIM),
                "repeat_in_norm": (REPEATED[-1],), "resid_in_norm": (ALL,),
            }  # fmt: skip
            for name, shape in shapes.items():
                g[name] = np.abs(draw.standard_normal(shape)).astype(np.float32)


def replayed(source, method, budget=BUDGET, **facts):
    with warnings.catch_warnings(action="ignore", category=kv.KvreplayWarning):
        return kv.replay(
            *source, methods=[method], budgets=budget and [budget], seeds=(SEED, 1), progress=False,
            save=["outputs", "kept"], metrics=["rel_err_out_mean", "final_bytes", "prompt_bytes"], **facts,
        )  # fmt: skip


def begun(source, method, budget=BUDGET, capacity=LATER, **facts):
    with warnings.catch_warnings(action="ignore", category=kv.KvreplayWarning):
        return kv.stepping(*source, method=method, budget=budget, capacity=capacity, seed=SEED, **facts)


class Stepped:
    """The outputs of all steps, [Hq, LATER, Dv] for each layer, and what each head held after the prompt and
    after each chunk of `size` rows."""

    def __init__(self, steps, layers=LAYERS, size=1, positions=None, source=rows):
        self.steps, self.layers = steps, layers
        self.held = [self._kept()]
        out = {layer: [] for layer in layers}
        for first in range(PROMPT, ALL, size):
            last = min(first + size, ALL)
            for layer in layers:
                at = None if positions is None else positions[first:last]
                out[layer].append(steps.step(layer, *part(source(layer), first, last), position_ids=at))
            self.held.append(self._kept())
        self.out = {layer: np.concatenate(chunks, axis=1) for layer, chunks in out.items()}

    def _kept(self):
        return {
            (layer, head): self.steps.kept(layer, head) for layer in self.layers for head in range(KV_HEADS)
        }


def kept_series(cell):
    """What each of a cell's caches held after the prompt, and after each step if it evicts then.
    Empty for a method that holds everything."""
    arrays = cell.arrays
    if len(arrays["kept_off"]) == 1:
        return []
    lists = np.split(arrays["kept_flat"], arrays["kept_off"][1:-1])
    caches = Q_HEADS // KV_HEADS if json.loads(cell.row["params"])["gqa.level"] == "query" else 1
    count = len(lists) // caches
    return [lists[c * count : (c + 1) * count] for c in range(caches)]


def expect_equal(run, stepped):
    """Outputs to single precision: tiles of other lengths add up in another order. Held tokens exactly."""
    for cell in run.cells:
        place = {name: cell.row[name] for name in ("layer", "kv_head")}
        expected = cell.arrays["out"]
        group = expected.shape[0]
        mine = stepped.out[place["layer"]][place["kv_head"] * group :][:group]
        assert np.abs(mine - expected).max() <= 1e-6 * np.abs(expected).max()
        for c, lists in enumerate(kept_series(cell)):
            for now, theirs in zip(stepped.held, lists, strict=False):
                held = now[place["layer"], place["kv_head"]]
                assert (held[c] if isinstance(held, list) else held).tolist() == theirs.tolist()
    assert stepped.steps.bytes == pytest.approx(sum(cell.row["final_bytes"] for cell in run.cells))
