"""Latent attention (MLA): the one row a token from which all heads' keys and values are projected.

Models of this kind (DeepSeek V2 and V3, Kimi, GLM-5, MiniCPM3) compute keys and values of every head by the
module `kv_b_proj`. Its input is the latent, which a serving engine caches. The recorder notes that input,
reads the projection off the module, and checks that both give the keys and values of the attention call.
"""

from dataclasses import dataclass
from typing import Any

import torch

# Relative error of projected keys and values. A part of the model that is not accounted for causes more.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
TOLERANCE_HALF = 2e-2


@dataclass
class Latent:
    """What the cache holds of n tokens, and its projections.

    rows [n, C]: latents. rope_k [n, R]: the rotated part of the keys, which all heads share. up_k [Hq, C, D]
    and up_v [Hq, C, Dv]: key and value of head h are `rows @ up_k[h]`, before the rotated part, and
    `rows @ up_v[h]`.
    """

    rows: Any
    rope_k: Any
    up_k: Any
    up_v: Any

    def keys(self, rotated_first=False):
        """The cached rows as the keys of one kv head, [1, n, C + R], or [1, n, R + C] as the engine has
        them."""
        parts = [self.rope_k, self.rows] if rotated_first else [self.rows, self.rope_k]
        return torch.cat(parts, dim=-1)[None]

    def queries(self, q):
        """Queries [Hq, n, D + R] of such keys with the rotated part first, [Hq, n, R + C]."""
        d = self.up_k.shape[-1]
        return torch.cat([q[..., d:], q[..., :d] @ self.up_k.to(q.dtype).mT], dim=-1)

    def by_head(self):
        """Keys [Hq, n, D + R] and values [Hq, n, Dv] of the heads."""
        shared = self.rope_k.expand(len(self.up_k), -1, -1)
        return torch.cat([self.rows @ self.up_k, shared], dim=-1), self.rows @ self.up_v

    def explains(self, key, value):
        """Whether the projections give key [Hq, n, D + R] and value [Hq, n, Dv]."""
        if self.rows.shape[0] != key.shape[1]:
            return False
        d = self.up_k.shape[-1]
        return (
            _agree((self.rows @ up for up in self.up_k), key[..., :d])
            and _agree((self.rope_k for _ in key), key[..., d:])
            and _agree((self.rows @ up for up in self.up_v), value)
        )


def _agree(made, given):
    """Whether `made` gives the rows of each head of `given`. Head by head: all heads of a long text at once
    would take several times the memory of the call."""
    off = size = 0.0
    for mine, its in zip(made, given, strict=True):
        off += (mine.double() - its.double()).square().sum()
        size += its.double().square().sum()
    return bool(off**0.5 <= TOLERANCE.get(given.dtype, TOLERANCE_HALF) * size**0.5)


class LatentTaps:
    """Notes the input of every `kv_b_proj` of a model from `listen` until `remove`."""

    def __init__(self, model):
        self.model = model
        self.inputs = {}
        self.projections = {}
        self.handles = []

    def listen(self):
        """Registers the hooks; none in models without latent attention."""
        for module in self.model.modules():
            if isinstance(getattr(module, "kv_b_proj", None), torch.nn.Module):
                self.handles.append(module.kv_b_proj.register_forward_pre_hook(self._note(module)))

    def remove(self):
        """Removes the hooks."""
        while self.handles:
            self.handles.pop().remove()

    def _note(self, attention):
        def note(_, args):
            self.inputs[attention] = args[0].detach()

        return note

    def take(self, module, n_rows):
        """The input of the module's projection in this pass, [n_rows, tokens, C]; None if it has none."""
        given = self.inputs.pop(module, None)
        return None if given is None else given.reshape(n_rows, -1, given.shape[-1])

    def of(self, module, rows, key, value):
        """Latent of tokens whose latents are rows [n, C], keys [Hq, n, D + R] and values [Hq, n, Dv]; None if
        the latents do not explain keys and values, now or in an earlier call of the module."""
        if module not in self.projections:
            self.projections[module] = _projections(module.kv_b_proj, rows, len(key), value.shape[-1])
        if self.projections[module] is None:
            return None
        up_k, up_v = self.projections[module]
        latent = Latent(rows, key[0, :, up_k.shape[-1] :], up_k, up_v)
        if not latent.rope_k.shape[-1] or not latent.explains(key, value):
            self.projections[module] = latent = None
        return latent


def _projections(projection, given, heads, v_dim):
    """up_k [Hq, C, D] and up_v [Hq, C, Dv] of a `kv_b_proj`, whichever way it stores its weights."""
    unit = torch.eye(given.shape[-1], dtype=given.dtype, device=given.device)
    with torch.no_grad():
        weights = projection.forward(unit)
    by_head = weights.reshape(len(unit), heads, -1).transpose(0, 1)
    return tuple(part.contiguous() for part in by_head.split([by_head.shape[-1] - v_dim, v_dim], dim=-1))
