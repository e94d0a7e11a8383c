"""Cases of methods calibrated on queries of other text: a trace of three prompts, and statistics files."""

from dataclasses import replace
from functools import cache

import h5py
import numpy as np
from engine_cases_tier2 import TRACES, Case, head_arrays, layers_of, write_trace
from reference import buffered, leverage
from reference.common import Head

SHORT = (17, 30)  # budgets of "widths", whose prompt has 42 tokens
LENGTHS = {"p1": 39, "p2": 70}  # tokens of the other prompts


@cache
def other_layers(trace):
    """The heads of every other prompt, in the layout of layers_of()."""
    found = {}
    for prompt, n in LENGTHS.items():
        shape, rng = replace(TRACES[trace], n=n, duplicates=0), np.random.default_rng(n)
        found[prompt] = [
            [replace_arrays(h, head_arrays(rng, shape, h.kv_head), n) for h in heads]
            for heads in layers_of(trace)
        ]
    return found


def replace_arrays(head, arrays, n):
    return Head(*arrays, head.scale, n // 2, head.layer, head.kv_head, head.n_layers, rope=head.rope)


def texts_of(head, trace, prompts):
    """One head in each of these prompts."""
    return [
        h
        for prompt in prompts
        for heads in other_layers(trace)[prompt]
        for h in heads
        if (h.layer, h.kv_head) == (head.layer, head.kv_head)
    ]


def write_files(folder, trace):
    """Writes the trace of three prompts, and a.h5: statistics of p1 and p2 by the numpy definitions."""
    write_trace(folder / "t.h5", trace)
    layers = layers_of(trace)
    with h5py.File(folder / "t.h5", "r+") as f:
        for prompt, same in other_layers(trace).items():
            for heads in same:
                group = f.create_group(f"prompts/{prompt}/layers/{heads[0].layer:03}")
                group.attrs["scaling"] = heads[0].scale
                group.attrs["rotary_dims"] = TRACES[trace].rotary
                group["q"] = np.concatenate([h.q for h in heads]).astype(np.float32)
                group["k"] = np.stack([h.k for h in heads]).astype(np.float32)
                group["v"] = np.stack([h.v for h in heads]).astype(np.float32)
            f[f"prompts/{prompt}"].attrs["n_prompt"] = same[0][0].P
    with h5py.File(folder / "a.h5", "w") as f:
        f.attrs.update({"trace_id": "another", "prompts": "p1,p2", "count": sum(LENGTHS.values())})
        for heads in layers:
            put_statistics(f.create_group(f"layers/{heads[0].layer:03}"), heads, trace)


def put_statistics(group, heads, trace):
    texts = [texts_of(h, trace, LENGTHS) for h in heads]
    means = [buffered.calibrate(h, t) for h, t in zip(heads, texts, strict=True)]
    mean, length, rest = (np.concatenate(same) for same in zip(*means, strict=True))
    group["q_mean"] = np.stack([mean.real, mean.imag], axis=-1)
    group["q_abs_mean"], group["q_rest_mean"] = length, rest
    group["q_dir"] = [leverage.filter_direction(h, t) for h, t in zip(heads, texts, strict=True)]
    weights = [
        np.mean([np.abs(t.q[g] * t.k).mean(axis=0) for t in same], axis=0)
        for h, same in zip(heads, texts, strict=True)
        for g in range(h.G)
    ]
    group["channel_rank"] = np.stack([np.argsort(-w, kind="stable") for w in weights]).astype(np.int32)


def by_others(traces, name, method, budgets, calibration="others", prompts=tuple(LENGTHS), more=None, **o):
    def case(trace):
        def reference(layers, B):
            return [
                [method(h, B, others=texts_of(h, trace, prompts), **o) for h in heads] for heads in layers
            ]

        entry = {"name": name, "calibration": calibration, **o, **(more or {})}
        return Case(entry, reference, (trace,), budgets)

    return [case(trace) for trace in traces]


FILE = "file:{folder}/a.h5"


def tri(traces, budgets=(41, 64), **o):
    return by_others(traces, "triattention", buffered.triattention, budgets, **o)


def filters(traces, budgets=(41, 64), **o):
    return by_others(traces, "qfilters", leverage.qfilters, budgets, **o)


CASES = [
    *tri(("smooth", "long"), buffer=16),
    *tri(("smooth",), calibration="prompt:p2", prompts=("p2",), buffer=9, group="mean", normalise=False),
    *tri(("smooth",), calibration=FILE, buffer=16),
    *tri(("smooth",), phase="oneshot", offset_agg="max"),
    *tri(("widths",), SHORT, buffer=5),
    *tri(("widths",), SHORT, calibration="prompt:p1", prompts=("p1",), buffer=5, sinks=2, recent=3),
    *tri(("widths",), SHORT, calibration=FILE, buffer=5, norm_term="full"),
    *filters(("smooth", "long"), recent=9),
    *filters(("smooth",), calibration="prompt:p1", prompts=("p1",), recent=4, phase="stream"),
    *filters(("smooth",), calibration=FILE, recent=9),
    *filters(("widths",), SHORT, recent=5),
    *filters(("widths",), SHORT, calibration=FILE, recent=0, phase="stream"),
]
