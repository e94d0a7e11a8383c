"""How much attention each head of the full model gives to the needle, from the trace."""

import numpy as np

from ..data.exact_head import probabilities


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
    q, k = (np.asarray(x, dtype=np.float64) for x in (layer.q[:, rows], layer.k))
    group = len(q) // len(k)
    sinks = np.full(len(q), -np.inf) if layer.sinks is None else layer.sinks
    masses = []
    for head, rows_of_head in enumerate(q):
        logits = layer.scaling * (rows_of_head @ k[head // group].T)
        seen = layer.softcap, layer.sliding_window, float(sinks[head]), layer.attention_chunk
        masses.append(probabilities(logits, at, *seen)[:, needle].sum(axis=1).mean())
    return np.reshape(masses, (len(k), group)).mean(axis=1)
