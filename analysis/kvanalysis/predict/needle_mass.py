"""How much attention each head of the full model gives to the needle, from the trace."""

import numpy as np


def needle_masses(prompt, spans):
    """{(layer, kv head): exact attention mass on the tokens of `spans` [n, 2]}, the mean over the rows behind
    the prompt and over the query heads of a kv head. prompt: kvtrace's Prompt."""
    needle = np.unique(np.concatenate([np.arange(first, last) for first, last in spans]))
    found = {}
    for number in prompt.layers:
        masses = _of_layer(prompt.layer(number), prompt.n_prompt, needle)
        found |= {(number, head): float(mass) for head, mass in enumerate(masses)}
    return found


def _of_layer(layer, n_prompt, needle):
    """[Hkv] of one layer."""
    rows = np.flatnonzero(layer.q_pos >= n_prompt)
    at = layer.q_pos[rows]
    q, k = (np.asarray(x, dtype=np.float32) for x in (layer.q[:, rows], layer.k))
    group = len(q) // len(k)
    return [
        _of_head(layer, q[h * group : (h + 1) * group], k[h], at, needle, h * group) for h in range(len(k))
    ]


def _of_head(layer, q, k, at, needle, first_head):
    logits = q @ k.T * layer.scaling
    if layer.softcap:
        logits = layer.softcap * np.tanh(logits / layer.softcap)
    tokens = np.arange(len(k))
    first = at - layer.sliding_window + 1 if layer.sliding_window else np.zeros_like(at)
    if layer.attention_chunk:
        first = at - at % layer.attention_chunk
    hidden = (tokens > at[:, None]) | (tokens < first[:, None])
    logits[:, hidden] = -np.inf
    top = logits.max(axis=-1, keepdims=True)
    e = np.exp(logits - top)
    total = e.sum(axis=-1)
    if layer.sinks is not None:
        total += np.exp(np.asarray(layer.sinks)[first_head : first_head + len(q), None] - top[..., 0])
    return (e[..., needle].sum(axis=-1) / total).mean()
