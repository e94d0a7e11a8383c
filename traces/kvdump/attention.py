"""Exact causal attention from stored q, k, v, the independent check of scale, heads and mask."""

import numpy as np

ROWS = 256  # query rows per block: bounds the score matrix to ROWS x T doubles


def exact_attention(q, k, v, q_pos, scaling, sliding_window=0, softcap=0.0, sinks=None):
    """Attention output in double precision.

    q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv], q_pos [Tq] the row of each query. Query head h reads kv
    head floor(h / (Hq / Hkv)). `sliding_window` w > 0: row t sees rows t-w+1..t. `softcap` c > 0: scores
    become c tanh(s / c). `sinks` [Hq]: one more logit per head that takes mass and gives no value.
    Returns [Hq, Tq, Dv] float64.
    """
    group = q.shape[0] // k.shape[0]
    out = np.empty((*q.shape[:2], v.shape[-1]))
    rows = np.arange(k.shape[1])
    for head in range(q.shape[0]):
        keys = k[head // group].astype(np.float64)
        values = v[head // group].astype(np.float64)
        for start in range(0, q.shape[1], ROWS):
            block = slice(start, start + ROWS)
            scores = q[head, block].astype(np.float64) @ keys.T * scaling
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            distance = np.asarray(q_pos)[block, None] - rows[None, :]
            hidden = distance < 0
            if sliding_window:
                hidden |= distance >= sliding_window
            scores[hidden] = -np.inf
            top = scores.max(axis=1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks[head])
            weights = np.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks[head] - top)
            out[head, block] = (weights / total) @ values
    return out


def mean_relative_deviation(found, expected):
    """Mean over heads and rows of ||found - expected|| / ||expected||; arrays [..., D]. A zero row counts 0
    when both are zero."""
    error = np.linalg.norm(np.asarray(found, dtype=np.float64) - expected, axis=-1)
    size = np.linalg.norm(np.asarray(expected, dtype=np.float64), axis=-1)
    return float(np.mean(error / np.maximum(size, np.finfo(np.float64).tiny)))
