"""Teacher-forced runs of the model: the prompt runs once, later tokens once for each way to attend."""

import copy
from dataclasses import dataclass

import torch
from kvbase.errors import TraceError
from kvrecord.hook import CachedRowsAttention, layer_of
from kvrecord.latent import Latent

from .attention import LogitRule


@dataclass
class LayerCall:
    """One layer's attention over all tokens so far.

    q [Hq, R, D]: queries of the new tokens. k [Hkv, T', D], v [Hkv, T', Dv]: the model's cache, with all T
    tokens, or the last T' of them in a layer with a window or chunks. own(mask): the model's attention
    function. latent: what the cache holds instead of k and v, with latent attention.
    """

    layer: int
    module: object
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    rule: LogitRule
    own: object
    latent: Latent | None = None

    def with_mask(self, mask, k=None, v=None):
        """Output [Hq, R, Dv] of the model's attention function under the additive mask [1, heads, R, T].
        k [Hkv, T, D], v [Hkv, T, Dv] float32 replace the cache if given."""
        groups = self.q.shape[0] // mask.shape[1]
        own = () if k is None else (k[None].to(self.k.dtype), v[None].to(self.v.dtype))
        mask = mask if own else mask[..., -self.k.shape[1] :]
        return self.own(mask.to(self.q.dtype).repeat_interleave(groups, dim=1), *own)[0][0].transpose(0, 1)


class SwitchedAttention(CachedRowsAttention):
    """Calls `way(LayerCall)` in each layer and uses its output. The model's attention is used if `way` is
    None or returns None.

    `disturb(layer, name, x)`, if not None, replaces queries, keys and values (including those of the prompt)
    before any other use. `answers(layer, q, k, v, rule)`, if not None, attends for a batch without a cache:
    it gets the new rows [n, heads, R, D] of n sequences and returns their outputs [n, Hq, R, Dv].
    """

    def __init__(self, model):
        super().__init__(model)
        self.way = None
        self.disturb = None
        self.answers = None

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        rule = LogitRule(scale, float(kwargs.get("softcap") or 0), kwargs.get("s_aux"))
        if self.answers:
            out = self.answers(layer_of(module), query, key, value, rule)
            return out.transpose(1, 2).contiguous(), None

        def own_under(mask, k=key, v=value):
            return own(module, query, k, v, mask, scaling=scaling, **kwargs)

        if query.shape[0] != 1:
            raise TraceError(f"batch of {query.shape[0]} sequences: one sequence at a time")
        latents = self.latents.take(module, 1)
        latent = None if latents is None else self.latents.of(module, latents[0], key[0], value[0])
        if self.disturb and latent:
            query, latent, key, value = self._disturbed_latents(layer_of(module), query, latent)
        elif self.disturb:
            query, key, value = self._disturbed(layer_of(module), query, key, value)
        call = LayerCall(layer_of(module), module, query[0], key[0], value[0], rule, own_under, latent)
        out = self.way(call) if self.way else None
        return own_under(attention_mask) if out is None else (out.transpose(0, 1)[None].contiguous(), None)

    def _disturbed_latents(self, layer, query, latent):
        """Query, latents, and the heads' keys and values that the latents give."""
        rows = (query[0], latent.rows[None], latent.rope_k[None])
        q, c, rope = (self.disturb(layer, name, x) for name, x in zip("qkv", rows, strict=True))
        latent = Latent(c[0], rope[0], latent.up_k, latent.up_v)
        key, value = latent.by_head()
        return q[None], latent, key[None], value[None]

    def _disturbed(self, layer, *rows):
        return [self.disturb(layer, name, x[0])[None] for name, x in zip("qkv", rows, strict=True)]


class PromptRun:
    """One prompt of `prefill` tokens and the tokens after it; tokens, positions: int64 arrays [T].

    The prompt's own pass is never compressed, so it runs once; `watch(LayerCall)` gets its attention calls.
    """

    def __init__(self, model, attention, tokens, positions, prefill, watch=None):
        self.model = model
        self.attention = attention
        self.tokens = torch.from_numpy(tokens)[None].to(model.device)
        # Models without rotary embedding may not take positions at all.
        usual = bool((positions == range(len(positions))).all())
        self.positions = None if usual else torch.from_numpy(positions)[None].to(model.device)
        self.prefill = prefill
        self.cache = None
        attention.way = watch
        self.cache = self._forward(slice(0, prefill), None, 1).past_key_values
        attention.way = None

    def decode(self, way, disturb=None):
        """Logits [R, vocabulary] of the tokens after the prompt, in one pass with the attention `way`.
        `disturb`: see SwitchedAttention."""
        self.attention.way, self.attention.disturb = way, disturb
        try:
            return self._forward(slice(self.prefill, None), copy.deepcopy(self.cache), 0).logits[0].float()
        finally:
            self.attention.way = self.attention.disturb = None

    def in_one_pass(self):
        """Logits as from `decode`, computed in one pass over all tokens without a cache."""
        behind = self.tokens.shape[1] - self.prefill
        return self._forward(slice(None), None, behind, use_cache=False).logits[0].float()

    def targets(self):
        """Token ids [R - 1] that rows 0..R-2 of the logits predict."""
        return self.tokens[0, self.prefill + 1 :]

    def _forward(self, part, cache, logits_to_keep, use_cache=True):
        where = {} if self.positions is None else {"position_ids": self.positions[:, part]}
        with torch.no_grad():
            return self.model(
                input_ids=self.tokens[:, part],
                past_key_values=cache,
                use_cache=use_cache,
                logits_to_keep=logits_to_keep,
                **where,
            )
