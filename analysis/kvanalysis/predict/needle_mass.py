"""How much attention each head of the full model gives to the needle, from the trace."""

import numpy as np

from ..data.exact_head import head_attention


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
    masses = [
        head_attention(layer, head, rows)[:, needle].sum(axis=1).mean() for head in range(layer.n_q_heads)
    ]
    return np.reshape(masses, (layer.n_kv_heads, layer.group)).mean(axis=1)
