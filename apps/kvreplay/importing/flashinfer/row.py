"""Attention of one query row, to compare the output in a dump with."""

from typing import Any

import numpy as np


def fits_together(layer: dict[str, Any]) -> bool:
    """Whether the shapes of q, k, v, out and sinks are those of one layer."""
    (q_heads, rows, dim), keys, values = (layer[name].shape for name in "qkv")
    n_sinks = q_heads if layer["sinks"] is None else layer["sinks"].size
    return (
        q_heads % max(keys[0], 1) == 0
        and dim == keys[2]
        and keys[:2] == values[:2]
        and layer["out"].shape == (q_heads, rows, values[2])
        and n_sinks == q_heads
    )


def output_of_row(layer: dict[str, Any], row: int, token: int) -> np.ndarray:
    """float32 [Hq, Dv]: causal attention of query row `row`, which is that of token `token`.

    layer: q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv] as Stored, and scaling, softcap, sliding_window and
    sinks as LayerArrays has them.
    """
    window = layer["sliding_window"]
    seen = slice(max(0, token + 1 - window) if window else 0, token + 1)
    k, v = (layer[name].floats()[:, seen].astype(np.float32) for name in "kv")
    q = layer["q"].floats()[:, row].astype(np.float32).reshape(k.shape[0], -1, k.shape[2])
    logits = np.einsum("hgd,htd->hgt", q, k) * layer["scaling"]
    if layer["softcap"]:
        logits = layer["softcap"] * np.tanh(logits / layer["softcap"])
    highest = logits.max(-1, keepdims=True)
    weights = np.exp(logits - highest)
    total = weights.sum(-1, keepdims=True)
    if layer["sinks"] is not None:
        total += np.exp(layer["sinks"].reshape(*q.shape[:2], 1) - highest)
    return np.einsum("hgt,htd->hgd", weights / total, v).reshape(-1, v.shape[2])
