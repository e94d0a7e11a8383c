"""Exact attention of one kv head in float64, straight from a trace and independent of the engine."""

import numpy as np

from ..errors import ResultsError

BLOCK_ROWS = 256  # query rows at a time: limits the memory to BLOCK_ROWS * T numbers


def group_attention(recorded, prompt, layer, kv_head, first, tokens):
    """[tokens - first, tokens] probabilities of query rows first..tokens-1, mean over the head's query heads.

    A row sums to 1 (less with sink logits, which take a share of it). Uses the layer's scaling, soft cap,
    sliding window and sink logits. `recorded`: data.arrays.Recorded. Raises ResultsError if queries are
    strided.
    """
    q = recorded.tensor(prompt, layer, "q")
    k = recorded.tensor(prompt, layer, "k")
    if q.shape[1] != k.shape[1]:
        raise ResultsError(
            f"layer {layer}: {q.shape[1]} queries for {k.shape[1]} keys (strided): the attention of later"
            " queries to a token needs a trace with every query"
        )
    group = len(q) // len(k)
    heads = range(kv_head * group, (kv_head + 1) * group)
    sinks = _sinks(recorded, prompt, layer, len(q))
    rule = [float(recorded.attribute(name, prompt, layer) or 0) for name in ("softcap", "sliding_window")]
    scaling = float(recorded.attribute("scaling", prompt, layer))
    attention = np.zeros((tokens - first, tokens))
    for head in heads:
        for start in range(first, tokens, BLOCK_ROWS):
            rows = np.arange(start, min(start + BLOCK_ROWS, tokens))
            logits = scaling * (q[head, rows] @ k[kv_head, :tokens].T)
            attention[rows - first] += probabilities(logits, rows, *rule, sinks[head]) / group
    return attention


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


def _sinks(recorded, prompt, layer, heads):
    try:
        return recorded.tensor(prompt, layer, "sinks")
    except KeyError:
        return np.full(heads, -np.inf)
