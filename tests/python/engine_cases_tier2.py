"""Cases for the engine against the numpy definitions: synthetic traces, configurations, reference calls."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from inspect import signature

import h5py
import numpy as np
from reference import tier2_formats as formats
from reference import tier2_frontier as frontier
from reference import tier2_select as select
from reference.common import Head, Rope, streamed_prompt

# --- Traces ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A synthetic trace. layers: the recorded ones of n_layers; duplicates: their spacing, 0 = none."""

    n: int
    P: int
    d: int
    dv: int
    kv_heads: int
    group: int
    layers: tuple = (0, 1, 2)
    n_layers: int = 3
    rotary: int = 8
    layout: str = "half_split"
    factor: float = 1.0  # attention factor of the rotary embedding
    duplicates: int = 0
    first_keys: float = 1.0  # scale of kv head 0's keys relative to the other heads
    seed: int = 0


TRACES = {
    "g1": Shape(n=157, P=133, d=11, dv=7, kv_heads=2, group=1, duplicates=9, seed=1),
    "g3": Shape(n=143, P=121, d=12, dv=10, kv_heads=3, group=3, layout="interleaved", duplicates=7, seed=2),
    "smooth": Shape(n=151, P=131, d=12, dv=9, kv_heads=2, group=3, seed=3),
    "long": Shape(n=331, P=301, d=8, dv=6, kv_heads=2, group=2, layers=(0, 2), n_layers=4, seed=4),
    # Whole blocks of 32 channels, and keys and values of different widths.
    "blocks": Shape(n=66, P=48, d=32, dv=32, kv_heads=2, group=2, layers=(0,), rotary=32, seed=5),
    # Every score of one head is above all scores of the other.
    "unequal": Shape(n=52, P=40, d=8, dv=6, kv_heads=2, group=1, layers=(0,), first_keys=0.05, seed=8),
    # Several prompts of one trace; one prompt is shorter.
    "text_a": Shape(n=151, P=131, d=12, dv=9, kv_heads=2, group=3, seed=11),
    "text_b": Shape(n=162, P=131, d=12, dv=9, kv_heads=2, group=3, seed=12),
    "text_c": Shape(n=120, P=97, d=12, dv=9, kv_heads=2, group=3, seed=13),
    "odd": Shape(n=46, P=34, d=11, dv=7, kv_heads=1, group=2, layers=(0,), seed=7),
    "widths": Shape(
        n=58, P=42, d=48, dv=16, kv_heads=1, group=3, rotary=24, layout="interleaved", factor=1.2, seed=6
    ),
}
# One layer is enough for methods that do not depend on the layer number.
ONE_LAYER = {"g1": "flat1", "g3": "flat3"}
TRACES |= {flat: replace(TRACES[whole], layers=(0,)) for whole, flat in ONE_LAYER.items()}


def clustered(rng, n, d, spread=0.5):
    """Points that drift through a few clusters."""
    centres = rng.normal(size=(6, d)) * 1.5
    topic = (np.arange(n) // 13 + rng.integers(0, 2, n)) % 6
    return centres[topic] + spread * rng.normal(size=(n, d))


def head_arrays(rng, shape, kv_head):
    """q [G, n, d], k, v of one kv head, with clusters, an attention sink and repeated tokens."""
    k, v = clustered(rng, shape.n, shape.d), clustered(rng, shape.n, shape.dv, 1.0)
    q = np.stack([clustered(rng, shape.n, shape.d, 0.8) for _ in range(shape.group)])
    k[0] = 2.5 * q.mean(axis=(0, 1)) / np.linalg.norm(q.mean(axis=(0, 1))) * np.sqrt(shape.d)
    v[0] *= 0.05
    k *= shape.first_keys if kv_head == 0 else 1
    if shape.duplicates:
        again = np.arange(20, shape.n, shape.duplicates)
        k[again], v[again] = k[again - 11], v[again - 11]
        k[26] = 0.0
        v[33] = 0.0
    return tuple(x.astype(np.float32) for x in (q, k, v))


@cache
def layers_of(trace):
    """All heads of a trace: one list of kv heads for each recorded layer."""
    shape = TRACES[trace]
    rng = np.random.default_rng(shape.seed)
    rope = Rope(10000.0 ** (-np.arange(0, shape.rotary, 2) / shape.rotary), shape.layout, shape.factor)
    return [
        [
            Head(
                *head_arrays(rng, shape, i),
                scale=1 / np.sqrt(shape.d),
                P=shape.P,
                layer=layer,
                kv_head=i,
                n_layers=shape.n_layers,
                rope=rope,
            )
            for i in range(shape.kv_heads)
        ]
        for layer in shape.layers
    ]


def write_trace(path, trace):
    """Writes the trace in the format that the engine reads."""
    shape, layers = TRACES[trace], layers_of(trace)
    rope = {
        "type": "default",
        "theta": 10000.0,
        "layout": shape.layout,
        "rotary_dims": shape.rotary,
        "inv_freq": layers[0][0].rope.inv_freq.tolist(),
        "attention_factor": shape.factor,
    }
    with h5py.File(path, "w") as f:
        f.attrs["kvreplay_schema"] = 1
        f.attrs["n_layers"] = shape.n_layers
        f.attrs["rope_json"] = json.dumps(rope)
        for heads in layers:
            group = f.create_group(f"prompts/p0/layers/{heads[0].layer:03}")
            group.attrs["scaling"] = heads[0].scale
            group.attrs["rotary_dims"] = shape.rotary
            group["q"] = np.concatenate([h.q for h in heads]).astype(np.float32)
            group["k"] = np.stack([h.k for h in heads]).astype(np.float32)
            group["v"] = np.stack([h.v for h in heads]).astype(np.float32)
        f["prompts/p0"].attrs["n_prompt"] = shape.P


SEED = 3  # seed of every random method

# --- Cases ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One configuration entry and its numpy reference.

    reference(layers, B) returns a list of results per layer. tolerance is relative to the largest output.
    prompt is `replay.prompt`. `{folder}` in strings of the entry stands for the folder of the test's files.
    """

    entry: dict
    reference: Callable
    traces: tuple = ("g1", "g3")
    budgets: tuple = (41, 64)
    tolerance: float = 1e-8
    prompt: str = "cut"

    @property
    def label(self):
        words = {k: v for k, v in self.entry.items() if k != "name"}
        words |= {"prompt": self.prompt} if self.prompt != "cut" else {}
        return " ".join([self.entry["name"], *(f"{k}={json.dumps(v)}" for k, v in words.items())]).replace(
            '"', ""
        )


def per_head(method, **o):
    return lambda layers, B: [[method(h, B, **o) for h in heads] for heads in layers]


def per_layer(method, **o):
    return lambda layers, B: [method(heads, B, **o) for heads in layers]


def scored(scorer, **o):
    return per_layer(select.by_score, scorer=scorer, **o)


def same(name, method, more=None, **o):
    """A case whose parameters have equal names on both sides; `more` goes to the entry only."""
    return Case({"name": name, **o, **(more or {})}, per_head(method, **o))


def changed(case, **fields):
    return Case(**{**case.__dict__, **fields})


def streamed(name, method, **o):
    """The prompt arrives token by token (C5)."""

    def reference(layers, B):
        return [[streamed_prompt(method, h, B, phase="stream", **o) for h in heads] for heads in layers]

    return Case({"name": name, "phase": "stream", **o}, reference, ("flat1", "flat3"), prompt="stream")


def exact(row_format):
    def reference(layers, B):
        return [[formats.exact(h, row_format, counted=False) for h in heads] for heads in layers]

    return reference


SNAP = {"name": "snapkv", "window": 16, "kernel": 5, "pool": "avg"}
FEW = (5, 17)

TOVA = [
    same("tova", select.tova),
    same("tova", select.tova, phase="oneshot"),
    same("tova", select.tova, recent=7),
    same("tova", select.tova, recent=3, sinks=2, phase="stream"),
    same("tova", select.tova, recent=6, sinks=3, phase="oneshot"),
    changed(same("tova", select.tova), budgets=FEW),
    changed(same("tova", select.tova), budgets=(1, 2), traces=("g3",)),
    *(
        Case({"name": "tova", "gqa": {"agg": agg}}, per_head(select.tova, agg=agg), traces=("g3",))
        for agg in ("mean", "max", "first")
    ),
    streamed("tova", select.tova),
    streamed("tova", select.tova, recent=4, sinks=2),
    streamed("tova", select.tova, row_format="int4"),
    Case({"name": "tova", "gqa": {"level": "query"}}, per_head(select.tova, level="query"), traces=("g3",)),
    Case(
        {"name": "tova", "gqa": {"level": "query"}, "phase": "oneshot"},
        per_head(select.tova, level="query", phase="oneshot"),
        traces=("g3",),
    ),
    Case({"name": "tova", "variant": "layer"}, per_layer(select.tova_layer)),
    Case({"name": "tova", "variant": "kvpress"}, per_layer(select.tova_layer), budgets=FEW),
    Case({"name": "tova", "variant": "layer", "recent": 5}, per_layer(select.tova_layer, recent=5)),
    Case(
        {"name": "tova", "variant": "layer", "phase": "oneshot"},
        per_layer(select.tova_layer, phase="oneshot"),
    ),
]

NORMS = [
    same("knorm", select.knorm),
    same("knorm", select.knorm, phase="stream"),
    same("knorm", select.knorm, phase="stream", recent=9),
    same("knorm", select.knorm, recent=10, sinks=4),
    same("knorm", select.knorm, skip_layers=[0, 2]),
    same("knorm", select.knorm, phase="stream", skip_layers=[1]),
    changed(same("knorm", select.knorm, phase="stream"), budgets=FEW),
    streamed("knorm", select.knorm, recent=6),
    streamed("keydiff", select.keydiff, recent=6),
    same("keydiff", select.keydiff),
    same("keydiff", select.keydiff, phase="stream"),
    same("keydiff", select.keydiff, phase="stream", recent=11),
    same("keydiff", select.keydiff, recent=8, sinks=3),
    same("keydiff", select.keydiff, block=10),
    same("keydiff", select.keydiff, block=128, recent=5),
    same("keydiff", select.keydiff, block=7, recent=4, phase="stream"),
    changed(same("keydiff", select.keydiff, phase="stream"), budgets=FEW),
]


def scorer_case(name, more=None, **o):
    """A one-shot scorer as a method; its own `sinks` are parameters of the score."""
    return Case({"name": name, **o, **(more or {})}, scored({"name": name, **o}))


SCORED = [
    scorer_case("expected_attention"),
    scorer_case("expected_attention", n_future=33, sinks=1),
    scorer_case("expected_attention", covariance=False),
    scorer_case("expected_attention", vnorm=False, sinks=0),
    scorer_case("expected_attention", eps=0.02, n_future=100),
    scorer_case("expected_attention", recent=6),
    changed(scorer_case("expected_attention"), budgets=FEW),
    scorer_case("lagkv", lag=16),
    scorer_case("lagkv", lag=23, sinks=1),
    scorer_case("lagkv", lag=7, sinks=0),
    scorer_case("lagkv"),  # too short for the default lag: keeps sinks and the most recent
    changed(scorer_case("lagkv"), traces=("long",)),
    scorer_case("lagkv", lag=16, recent=5),
    scorer_case("curdkv"),
    scorer_case("curdkv", block=7, sinks=2),
    scorer_case("curdkv", block=1, sinks=0),
    scorer_case("curdkv", recent=8),
    scorer_case("noncausal"),
    changed(scorer_case("noncausal"), traces=("long",)),
    scorer_case("noncausal", recent=5),
    *(
        Case(
            {"name": "expected_attention", "gqa": {"agg": agg}},
            scored({"name": "expected_attention", "agg": agg}),
            traces=("g3",),
        )
        for agg in ("max", "first")
    ),
    Case(
        {"name": "expected_attention", "gqa": {"level": "query"}},
        scored("expected_attention", level="query"),
        traces=("g3",),
    ),
    Case(
        {"name": "noncausal", "gqa": {"level": "query"}}, scored("noncausal", level="query"), traces=("g3",)
    ),
    Case(
        {"name": "noncausal", "gqa": {"agg": "max"}},
        scored({"name": "noncausal", "agg": "max"}),
        traces=("g3",),
    ),
]

# Methods of other tests, combined with the axes of this file.
OBSERVED = {"name": "h2o", "variant": "observed"}
AXES = [
    Case(OBSERVED, scored("observed")),
    *(
        Case(
            {**OBSERVED, "gqa": {"agg": agg}},
            scored({"name": "observed", "agg": agg}),
            traces=("g3",),
        )
        for agg in ("mean", "max", "first")
    ),
    Case({**OBSERVED, "gqa": {"level": "query"}}, scored("observed", level="query"), traces=("g3",)),
    Case(SNAP, scored(SNAP)),
    Case(
        {"name": "snapkv", "window": 9, "pool": "max", "kernel": 3},
        scored({**SNAP, "window": 9, "pool": "max", "kernel": 3}),
    ),
    *(
        Case({**SNAP, "gqa": {"agg": agg}}, scored({**SNAP, "agg": agg}), traces=("g3",))
        for agg in ("mean", "max", "first")
    ),
    Case({**SNAP, "gqa": {"level": "query"}}, scored(SNAP, level="query"), traces=("g3",)),
    Case({**SNAP, "sinks": 3}, scored(SNAP, sinks=3)),
    Case({**SNAP, "sinks": 2, "recent": 21}, scored(SNAP, sinks=2, recent=21)),
    Case(
        {**SNAP, "sinks": 3}, scored(SNAP, sinks=3), budgets=(16, 18)
    ),  # fewer than sinks and window together
    Case({**SNAP, "reweight": "uniform"}, scored(SNAP, reweight="uniform")),
    Case({**SNAP, "reweight": "uniform"}, scored(SNAP, reweight="uniform"), budgets=(9, 17)),
    Case({**SNAP, "reweight": "uniform", "sinks": 5}, scored(SNAP, reweight="uniform", sinks=5)),
    Case({**OBSERVED, "reweight": "uniform"}, scored("observed", reweight="uniform")),
    same("tova", select.tova, phase="oneshot", reweight="uniform", recent=4),
    same("knorm", select.knorm, reweight="uniform", recent=10, sinks=4),
    same("keydiff", select.keydiff, reweight="uniform"),
    Case(
        {**SNAP, "reweight": "uniform", "gqa": {"level": "query"}},
        scored(SNAP, reweight="uniform", level="query"),
        traces=("g3",),
    ),
]


WIDE = {"name": "snapkv", "window": 64}  # chunks of protected tokens tie, including the shorter last one


def wrapper(name, method, **o):
    return Case({"name": name, **o}, per_layer(method, **o))


WRAPPERS = [
    wrapper("adakv", select.adakv),
    wrapper("adakv", select.adakv, scorer=SNAP),
    wrapper("adakv", select.adakv, scorer=SNAP, alpha=0.9),
    wrapper("adakv", select.adakv, scorer=SNAP, alpha=0),
    wrapper("adakv", select.adakv, scorer="tova", alpha=0.35),
    wrapper("adakv", select.adakv, scorer="knorm"),
    changed(wrapper("adakv", select.adakv, scorer="knorm"), budgets=(1, 4), traces=("unequal",)),
    wrapper("adakv", select.adakv, scorer={"name": "keydiff", "recent": 5}),
    wrapper("adakv", select.adakv, scorer="expected_attention"),
    wrapper("adakv", select.adakv, scorer={"name": "expected_attention", "eps": 0}),
    wrapper("adakv", select.adakv, scorer="curdkv"),
    wrapper("adakv", select.adakv, scorer="noncausal"),
    wrapper("adakv", select.adakv, scorer={"name": "lagkv", "lag": 16}),
    wrapper("adakv", select.adakv, scorer=SNAP, variant="reference"),
    wrapper("adakv", select.adakv, scorer=SNAP, variant="reference", normalise=False, f=0),
    wrapper("adakv", select.adakv, scorer=SNAP, variant="reference", f=1),
    wrapper("adakv", select.adakv, scorer="tova", variant="reference", f=0.35),
    wrapper("adakv", select.adakv, scorer=SNAP, sinks=4),
    wrapper("adakv", select.adakv, scorer=SNAP, reweight="uniform"),
    changed(wrapper("adakv", select.adakv, scorer=SNAP), budgets=(9, 16)),
    changed(wrapper("adakv", select.adakv, scorer=SNAP, variant="reference", sinks=2), budgets=(17, 18)),
    wrapper("chunkkv", select.chunkkv, scorer=SNAP),
    changed(wrapper("chunkkv", select.chunkkv, scorer=SNAP), budgets=FEW),
    wrapper("chunkkv", select.chunkkv, scorer={"name": "snapkv", "window": 13}, chunk=7),
    wrapper("chunkkv", select.chunkkv, scorer="knorm", chunk=10),
    wrapper("chunkkv", select.chunkkv, scorer="tova", chunk=1),
    wrapper("chunkkv", select.chunkkv, scorer={"name": "tova", "variant": "layer"}, chunk=7),
    wrapper("chunkkv", select.chunkkv, scorer={**WIDE, "variant": "kvpress", "window": 14}, chunk=6),
    changed(wrapper("chunkkv", select.chunkkv, scorer=WIDE), traces=("long",), budgets=(66, 90)),
    wrapper("chunkkv", select.chunkkv, scorer="expected_attention", chunk=6),
    wrapper("chunkkv", select.chunkkv, scorer=SNAP, chunk=8, sinks=4),
    changed(wrapper("chunkkv", select.chunkkv, scorer="keydiff"), budgets=FEW),
]


def cake(**o):
    return Case({"name": "cake", **o}, partial(select.cake, **o), traces=("g1", "g3", "long"))


def allocated(allocator, reference, method=SNAP):
    return Case({**method, "allocator": allocator}, reference, traces=("g1", "g3", "long"))


FILE = [[20, 31, 40], [33, 21, 50], [64, 17, 33]]  # row = layer, column = kv head


def pyramidkv(beta, scorer=SNAP):
    return per_layer(select.pyramid, scorer=scorer, beta=beta, w=scorer.get("window", 0))


LAYERS = [
    cake(w=16),
    cake(w=7, gamma=0),
    cake(w=9, gamma=5, tau1=2, tau2=0.5),
    changed(cake(w=8, tau2=0.1), budgets=(100, 110)),
    Case({**SNAP, "name": "pyramidkv", "beta": 4}, pyramidkv(4), traces=("g3", "long"), budgets=(64, 97)),
    changed(allocated("pyramid", pyramidkv(20)), budgets=(41, 110)),
    allocated("pyramid", pyramidkv(20, {"name": "tova"}), {"name": "tova", "phase": "oneshot"}),
    allocated("ada", per_layer(select.adakv, scorer=SNAP)),
    allocated("cake", partial(select.cake_allocated, scorer=SNAP, w=SNAP["window"])),
    changed(
        allocated(
            "file:{folder}/budgets.csv",
            lambda layers, B: [select.file_allocation(heads, FILE, select.tova) for heads in layers],
            {"name": "tova"},
        ),
        traces=("g3",),
    ),
]

QUEST = [
    changed(same("quest", select.quest), traces=("g1", "g3", "long"), budgets=(41, 97)),
    changed(same("quest", select.quest, page=5, dense_layers=[]), traces=("g1", "g3", "smooth")),
    same("quest", select.quest, page=1, dense_layers=[2]),
    changed(same("quest", select.quest, page=16, dense_layers=[]), budgets=(1, 17)),
    Case(
        {"name": "quest", "page": 6, "dense_layers": [], "gqa": {"level": "kv"}},
        per_head(select.quest, page=6, dense_layers=(), level="kv"),
        traces=("g3",),
    ),
]


def formatted(row_format, traces=("flat1", "flat3"), budgets=(41, 64)):
    """One row format under a few methods: full cache, streaming, one-shot, weighted."""
    f = {"row_format": row_format}
    cases = [
        Case({"name": "exact", **f}, exact(row_format)),
        Case({"name": "window", **f}, per_head(formats.window, counted=False, **f)),
        Case({"name": "h2o", **f}, per_head(formats.h2o, counted=False, **f)),
        Case({"name": "tova", **f}, per_head(select.tova, **f)),
        Case({"name": "knorm", "phase": "stream", **f}, per_head(select.knorm, phase="stream", **f)),
        Case({**SNAP, "reweight": "uniform", **f}, scored(SNAP, reweight="uniform", **f)),
    ]
    return [changed(case, traces=traces, budgets=budgets) for case in cases]


SMALL_GEAR = {"name": "gear", "bits": 2, "g": 4, "R": 16, "rank": 2, "outliers": 5}
BEYOND_R = (160, 290)  # smaller caches never fill the default residual of 128 keys
ROWS = [
    *formatted("int4"),
    *formatted({"name": "int4", "group": 5}, ("flat1",)),
    *formatted({"name": "int8", "group": 4}, ("flat1",)),
    *formatted({"name": "kivi", "bits": 2, "g": 4, "R": 8}),
    *formatted({"name": "kivi", "bits": 4, "g": 5, "R": 15}, ("flat1",)),
    *formatted("kivi", ("long",), BEYOND_R),
    *formatted(SMALL_GEAR),
    *formatted({"name": "gear", "bits": 2, "g": 4, "R": 16, "rank": 0, "outliers": 10}, ("flat1",)),
    *formatted({"name": "gear", "bits": 4, "g": 8, "R": 8, "rank": 3, "outliers": 0}, ("flat1",)),
    *formatted({**SMALL_GEAR, "outliers": 25}),
    *formatted({**SMALL_GEAR, "order": "residual"}, ("flat1",)),
    *formatted("gear", ("long",), BEYOND_R),
    *formatted("f16", ("flat1",)),
    *formatted("bf16", ("flat1",)),
    changed(formatted("int8")[3], traces=("flat3",)),
    Case(
        {"name": "tova", "gqa": {"level": "query"}, "row_format": "int4"},
        per_head(select.tova, level="query", row_format="int4"),
        traces=("flat3",),
    ),
    Case(
        {"name": "tova", "variant": "layer", "row_format": "int4"},
        per_layer(select.tova_layer, row_format="int4"),
    ),
    Case(
        {"name": "adakv", "scorer": SNAP, "row_format": "int4"},
        per_layer(select.adakv, scorer=SNAP, row_format="int4"),
    ),
]


def random(name, method, traces=("smooth", "long"), budgets=(41, 64), tolerance=1e-8, **o):
    return Case({"name": name, **o}, per_head(method, **o, **seeded(method)), traces, budgets, tolerance)


def seeded(method):
    return {"seed": SEED} if "seed" in signature(method).parameters else {}


SOLVED = 1e-6  # the outputs depend on the solution of a linear system
SKETCH = {"m_in": 64, "m_out": 40, "outliers": 2}
FRONTIER = [
    random("qjl", frontier.qjl, outliers=2, traces=("long",)),
    random("qjl", frontier.qjl, group=8, buffer=24, **SKETCH),
    random("qjl", frontier.qjl, group=16, buffer=16, m_in=30, m_out=30, outliers=0),
    random("kernel_halving", frontier.kernel_halving, sinks=3, recent=9),
    random("kernel_halving", frontier.kernel_halving, sinks=0, recent=0, g=0),
    random("kernel_halving", frontier.kernel_halving, sinks=2, recent=5, g=1),
    random("kernel_halving", frontier.kernel_halving, budgets=(101,), traces=("long",)),
    random("wildcat", frontier.wildcat, sinks=3, recent=9, tolerance=SOLVED),
    random("wildcat", frontier.wildcat, sinks=1, recent=4, r=11, tau2=2.0, ridge=1e-3, tolerance=SOLVED),
    random("wildcat", frontier.wildcat, budgets=(64,), tolerance=SOLVED),
    random("attention_matching", frontier.attention_matching, tolerance=SOLVED),
    random("attention_matching", frontier.attention_matching, train="prompt", ridge=1e-3, tolerance=SOLVED),
    random("attention_matching", frontier.attention_matching, train="future", tolerance=SOLVED),
    random("attention_matching", frontier.attention_matching, clip=0.5, max_queries=100, tolerance=SOLVED),
    random("hybrid", frontier.hybrid, scorer={**SNAP, "window": 8}),
    random("hybrid", frontier.hybrid, scorer={**SNAP, "window": 8}, top_frac=0.8, sinks=0),
    random("hybrid", frontier.hybrid, scorer="tova", top_frac=0.3, sinks=2),
    *(
        Case(
            {"name": "hybrid", "scorer": {"name": "tova", "variant": variant}, "sinks": 1},
            per_layer(frontier.hybrid_layer, scorer={"name": "tova", "variant": "layer"}, sinks=1, seed=SEED),
            ("smooth", "long"),
        )
        for variant in ("layer", "kvpress")
    ),
    random("hybrid", frontier.hybrid, scorer="knorm", top_frac=1, sinks=0),
    random("hybrid", frontier.hybrid, scorer="knorm", top_frac=0, sinks=0),
]

AROUND_P = (120, 131, 140)  # the prompt of "smooth" has 131 tokens
EDGES = [
    changed(case, traces=("smooth",), budgets=AROUND_P)
    for case in (
        same("tova", select.tova),
        same("knorm", select.knorm, phase="stream"),
        same("keydiff", select.keydiff, phase="stream", block=9),
        Case({"name": "tova", "variant": "layer"}, per_layer(select.tova_layer)),
        scorer_case("expected_attention"),
        scorer_case("lagkv", lag=16),
        scorer_case("curdkv"),
        scorer_case("noncausal"),
        wrapper("adakv", select.adakv, scorer=SNAP),
        wrapper("adakv", select.adakv, scorer=SNAP, variant="reference"),
        wrapper("chunkkv", select.chunkkv, scorer=SNAP),
        cake(w=16),
        same("quest", select.quest, dense_layers=[]),
        random("kernel_halving", frontier.kernel_halving),
        random("wildcat", frontier.wildcat, tolerance=SOLVED),
        random("attention_matching", frontier.attention_matching, tolerance=SOLVED),
        random("hybrid", frontier.hybrid),
        Case({**SNAP, "reweight": "uniform"}, scored(SNAP, reweight="uniform")),
    )
]

CASES = [*TOVA, *NORMS, *SCORED, *AXES, *WRAPPERS, *LAYERS, *QUEST, *ROWS, *FRONTIER, *EDGES]
