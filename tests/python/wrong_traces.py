"""Traces made from the sample's numbers: correct ones, and ones with typical mistakes."""

import json
from functools import cache

import h5py
import numpy as np
from kvreplay_cli import ROOT

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
TOKENS = 160
Q_HEADS, KV_HEADS, DIM = 9, 3, 64
GROUP = Q_HEADS // KV_HEADS
SCALE = DIM**-0.5
THETA = 100000.0
FREQUENCIES = THETA ** (-np.arange(0, DIM, 2) / DIM)
ROPE = json.dumps({"theta": THETA, "rotary_dims": DIM})


@cache
def sample():
    """q [9, T, 64], k and v [3, T, 64] of layer 7, float64, as attention sees them."""
    with h5py.File(SAMPLE) as f:
        layer = f["prompts/0/layers/007"]
        return tuple(layer[name][:, :TOKENS].astype(np.float64) for name in "qkv")


def rotated(rows, times=1, interleaved=False):
    """rows [heads, T, 64] with the rotary embedding of positions 0..T-1 applied `times` more (negative:
    removed)."""
    angles = times * np.arange(rows.shape[1])[:, None] * FREQUENCIES
    turned = np.empty_like(rows)
    half = DIM // 2
    x, y = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    turned[..., x] = rows[..., x] * np.cos(angles) - rows[..., y] * np.sin(angles)
    turned[..., y] = rows[..., x] * np.sin(angles) + rows[..., y] * np.cos(angles)
    return turned


def attention(
    q, k, v, scale=SCALE, window=0, chunk=0, softcap=0.0, sinks=None, causal=True, reads=None, tokens=None
):  # fmt: skip
    """Exact attention [Hq, Tq, Dv] in float64. `reads`: kv head of each query head; `tokens`: token of each
    row of q."""
    tokens = np.arange(q.shape[1]) if tokens is None else tokens
    keys = np.arange(k.shape[1])
    distance = tokens[:, None] - keys
    seen = (distance >= 0) | (not causal)
    if window:
        seen &= distance < window
    if chunk:
        seen &= tokens[:, None] // chunk == keys // chunk
    out = np.empty((*q.shape[:2], v.shape[2]))
    for head in range(q.shape[0]):
        kv_head = head // (q.shape[0] // k.shape[0]) if reads is None else reads[head]
        logits = scale * q[head] @ k[kv_head].T
        if softcap:
            logits = softcap * np.tanh(logits / softcap)
        weights = np.where(seen, np.exp(logits - logits.max()), 0.0)
        total = weights.sum(axis=1, keepdims=True)
        if sinks is not None:
            total += np.exp(sinks[head] - logits.max())
        out[head] = weights @ v[kv_head] / total
    return out


def bfloat16_bits(numbers):
    """Bits of the nearest bfloat16 numbers, uint16."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


STORED = {
    "float32": lambda numbers: numbers.astype(np.float32),
    "float16": lambda numbers: numbers.astype(np.float16),
    "bfloat16": bfloat16_bits,
}


def home(prompt):
    """Path of the layer's group in a prompt."""
    return f"prompts/{prompt}/layers/000"


def write(path, prompt="p0", *, q, k, v, out=None, dtype="float32", more=None, **attributes):
    """Adds a prompt with one layer to the trace at `path`; `more`: further datasets of the layer."""
    with h5py.File(path, "a") as f:
        f.attrs["kvreplay_schema"] = 1
        layer = f.create_group(home(prompt))
        layer.attrs.update({"scaling": SCALE, "rope_json": ROPE, "source_dtype": dtype} | attributes)
        for name, numbers in {"q": q, "k": k, "v": v, "out": out}.items():
            if numbers is not None:
                layer[name] = STORED[dtype](numbers)
        for name, numbers in (more or {}).items():
            layer[name] = numbers
    return path
