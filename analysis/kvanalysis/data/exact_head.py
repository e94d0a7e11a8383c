"""Exact attention of one kv head in float64, straight from a trace and independent of the engine."""

import numpy as np

from ..errors import ResultsError

BLOCK_ROWS = 256  # query rows at a time: limits the memory to BLOCK_ROWS * T numbers


def group_attention(recorded, prompt, layer, kv_head, first, tokens):
    """[tokens - first, tokens] probabilities of query rows first..tokens-1, mean over the head's query heads.

    A row sums to 1 (less with sink logits, which take a share of it). `recorded`: data.arrays.Recorded.
    Raises ResultsError if queries are strided.
    """
    held = recorded.layer(prompt, layer)
    if held.n_query_rows != held.n_tokens:
        raise ResultsError(
            f"layer {layer}: {held.n_query_rows} queries for {held.n_tokens} keys (strided): the attention of"
            " later queries to a token needs a trace with every query"
        )
    heads = range(kv_head * held.group, (kv_head + 1) * held.group)
    attention = np.zeros((tokens - first, tokens))
    for head in heads:
        for start in range(first, tokens, BLOCK_ROWS):
            rows = np.arange(start, min(start + BLOCK_ROWS, tokens))
            attention[rows - first] += head_attention(held, head, rows)[:, :tokens] / held.group
    return attention


def head_attention(layer, head, rows):
    """[R, T] probabilities of one query head. layer: kvtrace's Layer, whose scaling, soft cap, window, chunks
    and sink logits are used; rows [R]: numbers of query rows."""
    q, k = (x.astype(np.float64) for x in (layer.q[head, rows], layer.k[head // layer.group]))
    sink = -np.inf if layer.sinks is None else float(layer.sinks[head])
    sight = layer.softcap, layer.sliding_window, sink, layer.attention_chunk
    return probabilities(layer.scaling * (q @ k.T), layer.q_pos[rows], *sight)


def probabilities(logits, rows, softcap=0.0, window=0, sink=-np.inf, chunk=0):
    """[R, T] causal softmax of scaled `logits` [R, T] of query rows `rows` [R].

    `softcap` c > 0: c tanh(l / c). `window` w > 0: a row sees its last w tokens, including itself. `chunk`
    c > 0: it sees those of its own chunk of c tokens. `sink`: a logit in the denominator only.
    """
    logits = softcap * np.tanh(logits / softcap) if softcap > 0 else logits
    token = np.arange(logits.shape[1])
    seen = token <= rows[:, None]
    if window > 0:
        seen &= token > rows[:, None] - window
    if chunk > 0:
        seen &= token >= (rows - rows % chunk)[:, None]
    logits = np.where(seen, logits, -np.inf)
    largest = np.maximum(logits.max(axis=1, keepdims=True), sink)
    weights = np.exp(logits - largest)
    return weights / (weights.sum(axis=1, keepdims=True) + np.exp(sink - largest))
