"""Cases of the methods added later, on the tier-2 traces with an output projection."""

from dataclasses import replace
from functools import cache

import h5py
import numpy as np
from engine_cases_tier2 import SEED, SNAP, Case, changed, per_head, per_layer, same
from engine_cases_tier2 import layers_of as tier2_layers
from engine_cases_tier2 import write_trace as write_tier2_trace
from reference import budgets, buffered, leverage, output_aware, window_votes

HIDDEN = 9  # width of the synthetic residual stream
PLAIN = ("smooth", "long")  # no repeated tokens, so that rounding cannot decide a tie
SKETCHES = (6, 11, 48)  # columns of the matrices whose uniforms come from a file
SHORT = (17, 30)  # budgets of "widths", whose prompt has 42 tokens


@cache
def layers_of(trace):
    """The tier-2 heads, each query head with its part of the output projection."""
    rng = np.random.default_rng(len(trace))
    return [
        [
            replace(h, o_proj=rng.normal(size=(h.G, h.dv, HIDDEN)).astype(np.float32).astype(np.float64))
            for h in heads
        ]
        for heads in tier2_layers(trace)
    ]


@cache
def uniforms(trace, columns):
    """{layer, kv head: the uniforms of a sketch matrix with that many columns}."""
    rng = np.random.default_rng(columns)
    return {
        (h.layer, h.kv_head): rng.random(h.d * columns + h.d * columns % 2)
        for heads in layers_of(trace)
        for h in heads
    }


def write_files(folder, trace):
    """Writes the trace with `o_proj`, and the files of uniforms that entries refer to."""
    write_tier2_trace(folder / "t.h5", trace)
    with h5py.File(folder / "t.h5", "r+") as f:
        for heads in layers_of(trace):
            group = f[f"prompts/p0/layers/{heads[0].layer:03}"]
            group["o_proj"] = np.concatenate([h.o_proj for h in heads]).astype(np.float32)
    for columns in SKETCHES:
        with h5py.File(folder / f"u{columns}.h5", "w") as f:
            for (layer, kv_head), u in uniforms(trace, columns).items():
                f[f"p0/{layer:03}/{kv_head}/U"] = u


def on(traces, case, budgets=None):
    return changed(case, traces=traces, **({"budgets": budgets} if budgets else {}))


# --- Buffered frame -------------------------------------------------------------------------------


def rkv(**o):
    return on(PLAIN, same("rkv", buffered.rkv, **o))


RKV = [
    rkv(),
    rkv(buffer=16),
    rkv(buffer=1),
    rkv(buffer=7, window=5, kernel=3),
    rkv(buffer=16, buffer_in_budget=True),
    rkv(buffer=9, buffer_in_budget=True, window=4),
    rkv(buffer=16, **{"lambda": 0.6}),
    rkv(buffer=16, **{"lambda": 1.0}),
    rkv(buffer=16, **{"lambda": 0.0}),
    rkv(buffer=12, threshold=0.9),
    rkv(buffer=12, threshold=-0.2, **{"lambda": 0.3}),
    rkv(buffer=16, retain="first", **{"lambda": 0.2}),
    rkv(buffer=16, retain="none", **{"lambda": 0.2}),
    rkv(buffer=16, agg="sum"),
    rkv(buffer=10, agg="sum", kernel=1, window=1),
    rkv(phase="oneshot"),
    rkv(phase="oneshot", agg="sum", window=16, kernel=5, **{"lambda": 0.4}),
    on(("widths",), rkv(buffer=6, window=4), SHORT),
    on(("g1",), rkv(buffer=16, **{"lambda": 0.5}), (41, 64)),
]


def tri(**o):
    return on(("smooth",), same("triattention", buffered.triattention, **o))


TRIATTENTION = [
    on(("smooth", "long"), tri()),
    on(("smooth", "long"), tri(buffer=16)),
    tri(buffer=1),
    tri(buffer=16, more={"calibration": "self"}, buffer_in_budget=True),
    tri(buffer=8, sinks=3, recent=5),
    tri(buffer=8, sinks=2, recent=4, buffer_in_budget=True),
    tri(buffer=16, offsets=1),
    tri(buffer=16, offsets=100),
    tri(buffer=16, offset_agg="max"),
    tri(buffer=16, group="mean"),
    tri(buffer=16, group="mean", normalise=False),
    tri(buffer=16, normalise=False),
    tri(buffer=16, norm_term="full"),
    tri(buffer=16, trig_term=False),
    changed(tri(buffer=8, keep_prompt=True), budgets=(3, 12)),
    changed(tri(buffer=4, keep_prompt=True, buffer_in_budget=True, recent=2), budgets=(9, 14)),
    tri(phase="oneshot"),
    tri(phase="oneshot", sinks=4, recent=6, offset_agg="max"),
    on(("widths",), tri(buffer=5), SHORT),
    on(("widths",), tri(buffer=5, sinks=2, recent=3, offset_agg="max"), SHORT),
    on(("widths",), tri(buffer=5, norm_term="full", group="mean", normalise=False), SHORT),
    on(("widths",), tri(phase="oneshot"), SHORT),
]

# --- Output-aware ---------------------------------------------------------------------------------

CRITICAL = {"name": "critical"}
CAOTE = {"name": "caote"}
CAOTES = [
    CAOTE,
    {**CAOTE, "level": "kv"},
    {**CAOTE, "fast": True},
    {**CAOTE, "level": "kv", "fast": True},
]
CRITICALS = [CRITICAL, {**CRITICAL, "alpha": 0.0}, {**CRITICAL, "alpha": 0.8, "eps": 1e-2}]
OBC = ("obc_value", "obc_key", "obc_joint")
EXPECTED = {"name": "expected_attention", "vnorm": False}


def wrapped(entry, traces=("smooth",), **o):
    """A one-shot scorer with `wrapper` or `score` added to its parameters."""
    scoring = {k: v for k, v in entry.items() if k not in ("name", "vnorm", "phase")}
    reference = per_head(output_aware.wrapped, name=entry["name"], **scoring, **o)
    return on(traces, Case({**entry, **o}, reference))


UNPOOLED = {**SNAP, "kernel": 1}
MAX_POOLED = {"name": "snapkv", "window": 9, "kernel": 3, "pool": "max"}
SHORT_SIGHTED = {**EXPECTED, "n_future": 33, "sinks": 2, "covariance": False}
ONESHOT_TOVA = {"name": "tova", "phase": "oneshot", "recent": 4}
OUTPUT_AWARE = [
    *(wrapped(SNAP, ("g3", "smooth"), wrapper=w) for w in (*CRITICALS, *CAOTES)),
    *(wrapped(UNPOOLED, wrapper=w) for w in (CRITICAL, CAOTE)),
    *(wrapped(MAX_POOLED, ("g3", "smooth"), wrapper=w) for w in (CRITICAL, CAOTE)),
    *(wrapped(EXPECTED, wrapper=w) for w in (*CRITICALS, *CAOTES)),
    *(wrapped(SHORT_SIGHTED, wrapper=w) for w in (CRITICAL, CAOTE)),
    *(wrapped(ONESHOT_TOVA, wrapper=w) for w in (*CRITICALS, *CAOTES)),
    *(wrapped(SNAP, ("g3", "smooth"), score=score) for score in OBC),
    *(wrapped(UNPOOLED, score=score) for score in OBC),
    *(on(PLAIN, same("tova", output_aware.tova, wrapper=w)) for w in CAOTES),
    on(PLAIN, same("tova", output_aware.tova, wrapper=CAOTE, recent=6)),
    *(same("h2o", output_aware.h2o, wrapper=w) for w in CAOTES),
    same("h2o", output_aware.h2o, wrapper=CAOTE, recent_frac=0.2),
    same("h2o", output_aware.h2o, wrapper=CAOTE, phase="oneshot"),
    *(wrapped(ONESHOT_TOVA, ("g3", "smooth"), score=score) for score in OBC),
    *(on(("g3", *PLAIN), same("tova", output_aware.tova, score=score)) for score in OBC),
    *(on(("g3", *PLAIN), same("h2o", output_aware.h2o, score=score)) for score in OBC),
    *(same("h2o", output_aware.h2o, score=score, phase="oneshot") for score in OBC),
    same("h2o", output_aware.h2o, score="obc_joint", recent_frac=0.2),
    on(PLAIN, same("tova", output_aware.tova, score="obc_key", recent=6)),
    on(("widths",), same("h2o", output_aware.h2o, score="obc_joint"), SHORT),
    on(("widths",), wrapped({**SNAP, "window": 8}, wrapper=CRITICAL), SHORT),
    on(("widths",), wrapped({**SNAP, "window": 8}, wrapper=CAOTE), SHORT),
]

# --- Leverage -------------------------------------------------------------------------------------


def by_layer(name, method, given=None, **o):
    return on(("smooth", "g3"), Case({"name": name, **o, **(given or {})}, per_layer(method, **o)))


def sketched(trace, columns, **o):
    """Compactor with its sketch matrix from a file of uniforms."""

    def reference(layers, B):
        given = uniforms(trace, columns)
        return [
            leverage.compactor(heads, B, sketch=columns, U=[given[h.layer, h.kv_head] for h in heads], **o)
            for heads in layers
        ]

    entry = {"name": "compactor", "sketch": columns, **o, "uniforms": f"{{folder}}/u{columns}.h5"}
    return on((trace,), Case(entry, reference))


LEVERAGE = [
    by_layer("compactor", leverage.compactor, sketch=0),
    by_layer("compactor", leverage.compactor, sketch=0, blend=0.0),
    by_layer("compactor", leverage.compactor, sketch=0, blend=2.0, ridge=0.5),
    by_layer("compactor", leverage.compactor, sketch=0, chunk=17, sinks=3, recent=6),
    by_layer("compactor", leverage.compactor, sketch=0, chunk=32, sinks=0, recent=0),
    on(("widths",), by_layer("compactor", leverage.compactor, sketch=0, chunk=13, sinks=4), SHORT),
    sketched("smooth", 6),
    sketched("smooth", 11, chunk=40, blend=0.5, sinks=5, recent=2),
    changed(sketched("widths", 48), budgets=SHORT),
    Case(
        {"name": "compactor", "sketch": 7, "chunk": 50},
        per_layer(leverage.compactor, sketch=7, chunk=50, seed=SEED),
        traces=("smooth",),
    ),
    *(
        on(traces, same("capkv", leverage.capkv, **o), sizes)
        for traces, sizes in ((("smooth", "long"), (41, 64)), (("widths",), SHORT))
        for o in (
            {},
            {"variant": "paper"},
            {"n_future": 40, "sinks": 0},
            {"tau": 1.5, "eps": 1e-3, "sinks": 6},
            {"variant": "paper", "n_future": 7, "eps": 0.0},
        )
    ),
    *(
        on(traces, same("qfilters", leverage.qfilters, **o), sizes)
        for traces, sizes in ((("smooth", "long"), (41, 64)), (("widths",), SHORT))
        for o in (
            {"recent": 9},
            {"recent": 0, "phase": "oneshot"},
            {"recent": 4, "phase": "stream"},
            {"recent": 0, "phase": "stream", "more": {"calibration": "self"}},
        )
    ),
    on(("smooth",), same("qfilters", leverage.qfilters)),
]

# --- Heads that stream ----------------------------------------------------------------------------


def duo(traces=("smooth", "g3"), **o):
    """DuoAttention takes no budget: its sizes are parameters."""

    def reference(layers, B):
        return budgets.duo_attention(layers, **o)

    return Case({"name": "duo_attention", **o}, reference, traces, budgets=(41,))


DUO = [
    duo(sinks=4, recent=12),
    duo(sinks=4, recent=12, stream_frac=0.25),
    duo(sinks=0, recent=30, stream_frac=1.0),
    duo(sinks=2, recent=9, stream_frac=0.0),
    duo(rule="area", sinks=4, recent=12),
    duo(rule="area", sinks=4, recent=12, length=100, stream_frac=0.7),
    duo(("widths",), rule="area", sinks=3, recent=8, length=60),
    duo(("long",), sinks=4, recent=60),
]

# --- Other windows --------------------------------------------------------------------------------

FINCH = [
    same("finch", window_votes.finch),
    same("finch", window_votes.finch, window=9),
    same("finch", window_votes.finch, window=16, chunks=3),
    same("finch", window_votes.finch, window=5, chunks=7, positions="original"),
    same("finch", window_votes.finch, window=48, positions="original"),
    on(("widths",), same("finch", window_votes.finch, window=6, chunks=2), SHORT),
]
LAQ = [
    on(("g3", *PLAIN), same("laq", window_votes.laq)),
    same("laq", window_votes.laq, lookahead=3, kernel=1),
    same("laq", window_votes.laq, lookahead=12, kernel=5, pool="avg"),
    on(("widths",), same("laq", window_votes.laq, kernel=3), SHORT),
]

CASES = [*RKV, *TRIATTENTION, *OUTPUT_AWARE, *LEVERAGE, *DUO, *FINCH, *LAQ]
