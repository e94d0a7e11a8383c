"""Exact causal attention from stored q, k, v: an independent check of scale, heads and mask."""

import numpy as np

ROWS = 256  # query rows per block: bounds the score matrix to ROWS x T doubles


def exact_attention(q, k, v, q_pos, scaling, sliding_window=0, softcap=0.0, sinks=None, chunk=0):
    """Attention output in double precision.

    q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv]; q_pos [Tq]: the row of each query. Query head h reads kv
    head floor(h / (Hq / Hkv)). `sliding_window` w > 0: row t sees rows t-w+1..t. `chunk` c > 0: row t sees
    those of rows 0..t in its own chunk of c rows. `softcap` c > 0: scores become c tanh(s / c). `sinks` [Hq]:
    one extra logit per head that takes probability but has no value.
    Returns [Hq, Tq, Dv] float64.
    """
    out = np.empty((*q.shape[:2], v.shape[-1]))
    arguments = (q, k, v, q_pos, scaling, sliding_window, softcap, sinks, chunk)
    for head, block, _, weights, values in _blocks(*arguments):
        out[head, block] = weights @ values
    return out


def rounding_reach(q, k, v, q_pos, scaling, sliding_window=0, softcap=0.0, sinks=None, chunk=0):
    """[Hq, Tq]: how far a row of `exact_attention` can move, per relative error of its logits.

    If logits s_i become s_i (1 + e_i), the output o = sum w_i v_i moves, to first order, by
    sum w_i s_i e_i (v_i - o). For |e_i| <= e that is at most e times the sum of w_i |s_i| |v_i - o|.
    """
    reach = np.empty(q.shape[:2])
    arguments = (q, k, v, q_pos, scaling, sliding_window, softcap, sinks, chunk)
    for head, block, scores, weights, values in _blocks(*arguments):
        weighted = weights * np.abs(np.where(np.isfinite(scores), scores, 0))
        for row, out in enumerate(weights @ values):
            reach[head, block.start + row] = weighted[row] @ np.linalg.norm(values - out, axis=-1)
    return reach


def _blocks(q, k, v, q_pos, scaling, sliding_window, softcap, sinks, chunk):
    """Yields (head, slice of queries, scores, weights, values) of exact attention; masked scores are -inf."""
    group = q.shape[0] // k.shape[0]
    rows = np.arange(k.shape[1])
    for head in range(q.shape[0]):
        keys = k[head // group].astype(np.float64)
        values = v[head // group].astype(np.float64)
        for start in range(0, q.shape[1], ROWS):
            block = slice(start, start + ROWS)
            scores = q[head, block].astype(np.float64) @ keys.T * scaling
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            own = np.asarray(q_pos)[block, None]
            distance = own - rows[None, :]
            hidden = distance < 0
            if sliding_window:
                hidden |= distance >= sliding_window
            if chunk:
                hidden |= rows[None, :] < own // chunk * chunk
            scores[hidden] = -np.inf
            top = scores.max(axis=1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks[head])
            weights = np.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks[head] - top)
            yield head, block, scores, weights / total, values


def mean_relative_deviation(found, expected):
    """Mean over heads and rows of ||found - expected|| / ||expected||, arrays [..., D]. A row that is zero in
    both arrays counts as 0."""
    error = np.linalg.norm(np.asarray(found, dtype=np.float64) - expected, axis=-1)
    size = np.linalg.norm(np.asarray(expected, dtype=np.float64), axis=-1)
    return float(np.mean(error / np.maximum(size, np.finfo(np.float64).tiny)))
