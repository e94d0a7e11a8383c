"""Intercepts the attention calls of a Hugging Face model.

The hook is a named attention implementation. It forwards every call to the model's own implementation and
passes inputs and output to a callback. Its name is also registered for masks, with the mask function of the
model's implementation: otherwise transformers builds no mask, and windowed models silently attend to all.
"""

import itertools
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from kvbase.errors import TraceError

from .latent import Latent, LatentTaps
from .release import interface_changed, require_release

require_release()
try:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
except ImportError as error:
    raise interface_changed(error) from error

# Names cannot be removed from the interface, so recordings reuse a few.
_new_names = (f"kvreplay-{number}" for number in itertools.count())
_free_names = []


@dataclass
class AttentionCall:
    """One attention call of one layer, for one row of the batch.

    q [Hq, n, D], k [Hkv, n, D], v [Hkv, n, Dv]: rows of the n new tokens, after RoPE, kv heads not repeated.
    out [Hq, n, Dv]: the layer's attention output. Without padding; with it the call reads `columns` new
    tokens of the batch's row number `row`, and attends to kv_len, cache included. latent: what
    the cache holds instead of k and v, with latent attention; then Hkv is Hq. all_k, all_v [Hkv, kv_len, .]:
    k and v of every column that attention reads, as the model's cache holds them.
    """

    layer: int
    module: Any
    q: Any
    k: Any
    v: Any
    out: Any
    kv_len: int
    scaling: float
    sliding_window: int
    attention_chunk: int
    softcap: float
    sinks: Any
    q_prescaled: bool
    row: int
    columns: int
    all_k: Any
    all_v: Any
    latent: Latent | None = None

    def cached(self):
        """{name in the trace: rows [heads, n, width]} of what a cache holds of the new tokens."""
        if self.latent is None:
            return {"k": self.k, "v": self.v}
        return {"latent": self.latent.rows[None], "rope_k": self.latent.rope_k[None]}

    def cached_keys(self):
        """The keys in the cache [heads, n, width]; with latent attention, its rows are those of one head."""
        return self.k if self.latent is None else self.latent.keys()


def base_implementation(model):
    """Name of the implementation to forward to: the model's, or "eager" if only that one is exact.

    sdpa ignores attention sinks and refuses a soft cap.
    """
    config = model.config.get_text_config()
    has_sinks = any(hasattr(module, "sinks") for module in model.modules())
    if has_sinks or getattr(config, "attn_logit_softcapping", None):
        return "eager"
    return model.config._attn_implementation or "eager"


def base_function(base, module):
    """The attention function that the name `base` means for this module. TraceError if there is none."""
    function = AttentionInterface().get(base)
    if function is None:
        function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise TraceError(f"{type(module).__name__} has no {base} attention function to delegate to")
    return function


@contextmanager
def base_attention(model):
    """While entered, `model` uses the implementation that the hook forwards to, without the hook. It may
    differ from the one that the model would choose."""
    before = model.config._attn_implementation
    model.set_attn_implementation(base_implementation(model))
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _refuse_call(*_, **__):
    raise TraceError("the recording is over, but a model still calls its hook")


class NamedAttention:
    """Context manager: while entered, every attention call of `model` goes through `attend`."""

    def __init__(self, model):
        self.model = model
        self.base = base_implementation(model)
        self.before = model.config._attn_implementation
        self.name = None

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        """Returns the attention output [B, n, Hq, Dv] of B rows, and weights or None. query [B, Hq, n, D];
        key and value [B, Hkv, T, .]. `own`: the function that the model would have called with these."""
        raise NotImplementedError

    def __enter__(self):
        masks = AttentionMaskInterface()
        if self.base not in masks:
            raise TraceError(
                f"attention implementation {self.base!r} has no mask function that the recorder knows"
            )
        self.name = _free_names.pop() if _free_names else next(_new_names)
        AttentionInterface.register(self.name, self._forward)
        AttentionMaskInterface.register(self.name, masks[self.base])
        self.model.set_attn_implementation(self.name)
        return self

    def __exit__(self, *_):
        self.model.set_attn_implementation(self.before)
        # The name stays registered; this drops its reference to the model.
        AttentionInterface.register(self.name, _refuse_call)
        _free_names.append(self.name)

    def _forward(self, module, *args, **kwargs):
        return self.attend(base_function(self.base, module), module, *args, **kwargs)


def only_row(n_rows):
    """The tokens of a batch that must be one sequence without padding."""
    if n_rows != 1:
        raise TraceError(f"batch of {n_rows} sequences: record one sequence at a time")
    return [(0, slice(None))]


class CachedRowsAttention(NamedAttention):
    """A NamedAttention that also knows what the cache holds where that is not the keys and values of the
    call: while entered, `latents` notes it."""

    def __init__(self, model):
        super().__init__(model)
        self.latents = LatentTaps(model)

    def __enter__(self):
        entered = super().__enter__()
        self.latents.listen()
        return entered

    def __exit__(self, *failure):
        self.latents.remove()
        super().__exit__(*failure)


class AttentionHook(CachedRowsAttention):
    """While entered, calls `on_call(AttentionCall)` after every attention call of `model`, once for each row
    of the batch that has tokens. tokens_in(n_rows): [(row, columns of its tokens)] of the pass in work."""

    def __init__(self, model, on_call, tokens_in=only_row):
        super().__init__(model)
        self.on_call = on_call
        self.tokens_in = tokens_in

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        output = own(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        latents = self.latents.take(module, len(query))
        for row, columns in self.tokens_in(len(query)):
            call = _describe(module, query, key, value, output[0], scaling, kwargs, row, columns)
            if latents is not None:
                own_rows = latents[row, -query.shape[2] :][columns]
                call.latent = self.latents.of(module, own_rows, call.k, call.v)
            self.on_call(call)
        return output


def layer_of(module):
    """Layer index of an attention module. TraceError if it has none."""
    layer = getattr(module, "layer_idx", None)
    if layer is None or layer < 0:
        raise TraceError(
            f"{type(module).__name__} does not know its layer index (layers share it, as in Zamba2): the "
            "recorder cannot record it"
        )
    return layer


def _chunk_of(module):
    """Tokens of a chunk in which the module attends; 0: it attends to all. Only the model's mask knows it, so
    the call does not pass it on."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds or kinds[layer_of(module) % len(kinds)] != "chunked_attention":
        return 0
    return int(getattr(config, "attention_chunk_size", None) or 0)


def running_model(model):
    """The model whose forward passes read tokens: the one inside PEFT's, DataParallel's and compiled ones."""
    while True:
        inner = getattr(model, "get_base_model", None)
        inside = inner() if callable(inner) else getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inside, torch.nn.Module) or inside is model:
            return model
        model = inside


def _describe(module, query, key, value, out, scaling, kwargs, row, columns):
    n = query.shape[2]
    default = query.shape[-1] ** -0.5
    passed = default if scaling is None else float(scaling)
    own = getattr(module, "scaling", None)
    sinks = kwargs.get("s_aux")
    return AttentionCall(
        layer=layer_of(module),
        module=module,
        q=query[row].detach()[:, columns],
        # With a cache, key and value hold the whole cache (in a layer with a window or chunks: as
        # many as it may need), new rows last.
        k=key[row, :, -n:].detach()[:, columns],
        v=value[row, :, -n:].detach()[:, columns],
        out=out[row].detach().transpose(0, 1)[:, columns],
        kv_len=key.shape[2],
        scaling=passed,
        sliding_window=int(kwargs.get("sliding_window") or 0),
        attention_chunk=_chunk_of(module),
        softcap=float(kwargs.get("softcap") or 0.0),
        sinks=None if sinks is None else sinks.detach(),
        # OPT scales q itself and passes 1; other models pass the module's scaling.
        q_prescaled=isinstance(own, float) and passed == 1.0 and own != 1.0,
        row=row,
        columns=n,
        all_k=key[row].detach(),
        all_v=value[row].detach(),
    )
