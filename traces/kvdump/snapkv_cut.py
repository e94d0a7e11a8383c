"""SnapKV on a model's own cache, for `--lookahead`: which prompt tokens a kv head keeps, and a cache of them.

The last rows of the prompt vote for what is before them, a group's votes are added up and pooled, and the
rows that voted stay: the engine's method `snapkv` with its defaults.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import max_pool1d
from transformers.cache_utils import DynamicLayer

from .errors import DumpError

REMEDY = "leave --lookahead out"


@dataclass(frozen=True)
class Cut:
    """Tokens that a kv head keeps, how many of them are the last rows, which vote, and how many neighbours
    (odd) share the largest vote."""

    budget: int = 256
    window: int = 32
    kernel: int = 7


def kept_tokens(call, cut):
    """The tokens [Hkv, min(budget, n)], ascending, that each kv head keeps of an AttentionCall on n."""
    heads, n = call.k.shape[:2]
    if n <= cut.budget or cut.budget <= cut.window or n <= cut.window:
        return torch.arange(max(n - cut.budget, 0), n, device=call.k.device).expand(heads, -1)
    prefix = n - cut.window
    votes = _probabilities(call, prefix)[..., :prefix].unflatten(0, (heads, -1)).sum((1, 2))
    pooled = max_pool1d(votes[None], cut.kernel, stride=1, padding=cut.kernel // 2)[0]
    # Equal votes are the rule behind a pool: the earlier token stays.
    best = pooled.sort(dim=-1, descending=True, stable=True).indices[:, : cut.budget - cut.window]
    window = torch.arange(prefix, n, device=best.device).expand(heads, -1)
    return torch.cat([best.sort(dim=-1).values, window], 1)


def _probabilities(call, first):
    """[Hq, n - first, n] float64: what the rows from `first` on see of the call's own keys."""
    q, k = call.q[:, first:].double(), call.k.double()
    logits = call.scaling * q @ k.repeat_interleave(q.shape[0] // k.shape[0], 0).mT
    if call.softcap:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    rows, n = logits.shape[1:]
    ahead = torch.ones(rows, n, dtype=torch.bool, device=logits.device).triu(first + 1)
    logits = logits.masked_fill(ahead, -torch.inf)
    if call.sinks is not None:
        logits = torch.cat([logits, call.sinks.double()[:, None, None].expand(-1, rows, 1)], -1)
    return logits.softmax(-1)[..., :n]


def require_cuttable(model, cache, seen):
    """DumpError unless the cache that a pass left holds the keys of every token in every layer, each its own;
    `seen`: {layer: (class of the attention, its sliding window)} of the pass."""
    own = getattr(cache, "layers", ())
    for layer in range(model.config.get_text_config().num_hidden_layers):
        rows = own[layer] if layer < len(own) else None
        name, window = seen.get(layer, ("", 0))
        why = None
        if not name:
            why = "it never calls the attention interface, as recurrent layers do not"
        elif window or getattr(rows, "is_sliding", False):
            why = f"{name} slides a window over its cache"
        elif getattr(rows, "keys", None) is None:
            why = f"{name} reads the cache of another layer"
        elif type(rows) is not DynamicLayer:
            why = f"{type(rows).__name__} holds something else than the keys and values of all tokens"
        if why:
            raise DumpError(f"layer {layer}: {why}, so its cache cannot be cut: {REMEDY}")


def cut_cache(cache, kept):
    """Leave of each layer's cache the tokens of `kept`, {layer: [Hkv, B]}."""
    for layer, tokens in kept.items():
        rows = cache.layers[layer]
        where = tokens[None, :, :, None]
        rows.keys = rows.keys.gather(2, where.expand(-1, -1, -1, rows.keys.shape[-1]))
        rows.values = rows.values.gather(2, where.expand(-1, -1, -1, rows.values.shape[-1]))
