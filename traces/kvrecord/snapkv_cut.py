"""SnapKV on a model's cache, for `--lookahead`: chooses the prompt tokens that each kv head keeps, and cuts
the cache to them.

The prompt's last rows vote for the tokens before them, votes are summed over a group and pooled, and the last
rows are kept: the engine's method `snapkv` with its defaults.
"""

from dataclasses import dataclass

import torch
from kvbase.errors import TraceError
from torch.nn.functional import max_pool1d
from transformers.cache_utils import DynamicLayer

REMEDY = "leave --lookahead out"


@dataclass(frozen=True)
class Cut:
    """budget: tokens that a kv head keeps. window: how many last rows vote and are kept. kernel: width of the
    max pooling of votes (odd)."""

    budget: int
    window: int = 32
    kernel: int = 7


def kept_tokens(call, cut):
    """Tokens [Hkv, min(budget, n)], ascending, that each kv head keeps of an AttentionCall on n tokens. With
    latent attention all heads share a cache, and Hkv is 1."""
    heads, n = call.cached_keys().shape[:2]
    if n <= cut.budget or cut.budget <= cut.window or n <= cut.window:
        return torch.arange(max(n - cut.budget, 0), n, device=call.k.device).expand(heads, -1)
    prefix = n - cut.window
    votes = _probabilities(call, prefix)[..., :prefix].unflatten(0, (heads, -1)).sum((1, 2))
    pooled = max_pool1d(votes[None], cut.kernel, stride=1, padding=cut.kernel // 2)[0]
    # Pooling makes many votes equal: the stable sort keeps the earlier token.
    best = pooled.sort(dim=-1, descending=True, stable=True).indices[:, : cut.budget - cut.window]
    window = torch.arange(prefix, n, device=best.device).expand(heads, -1)
    return torch.cat([best.sort(dim=-1).values, window], 1)


def _probabilities(call, first):
    """[Hq, n - first, n] float64: attention probabilities of the rows from `first` on over the call's
    keys."""
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
    """TraceError unless, after a pass, every layer's own cache holds the keys of all tokens. `seen`: {layer:
    (class of the attention, its sliding window)} in this pass."""
    own = getattr(cache, "layers", ())
    for layer in range(model.config.get_text_config().num_hidden_layers):
        rows = own[layer] if layer < len(own) else None
        name, window = seen.get(layer, ("", 0))
        why = None
        if not name:
            why = "it never calls the attention interface, as recurrent layers do not"
        elif window or getattr(rows, "is_sliding", False):
            why = f"{name} keeps only its window or chunk in the cache"
        elif getattr(rows, "keys", None) is None:
            why = f"{name} reads the cache of another layer"
        elif type(rows) is not DynamicLayer:
            why = f"{type(rows).__name__} does not hold the keys and values of all tokens"
        if why:
            raise TraceError(f"layer {layer}: {why}, so its cache cannot be cut: {REMEDY}")


def cut_cache(cache, kept):
    """Cuts each layer's cache to the tokens `kept` {layer: [Hkv, B]}."""
    for layer, tokens in kept.items():
        rows = cache.layers[layer]
        where = tokens[None, :, :, None]
        heads = rows.keys.shape[1]  # latents may be cached as the keys and values of every head
        rows.keys = rows.keys.gather(2, where.expand(-1, heads, -1, rows.keys.shape[-1]))
        rows.values = rows.values.gather(2, where.expand(-1, heads, -1, rows.values.shape[-1]))
