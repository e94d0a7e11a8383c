"""Listening to a Hugging Face model's attention calls.

The hook is a named attention implementation that hands every call on to the model's own one and then shows
the caller what passed by. The same name is registered for masks with the own implementation's mask maker:
without it transformers builds no mask at all, and windowed models silently run full attention.
"""

import itertools
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import DumpError
from .release import interface_changed, require_release

require_release()
try:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
except ImportError as error:
    raise interface_changed(error) from error

# Names cannot be taken out of the interface again, so a few serve all recordings, one after the other.
_new_names = (f"kvdump-{number}" for number in itertools.count())
_free_names = []


@dataclass
class AttentionCall:
    """One attention call of one layer, batch size 1.

    q [Hq, n, D], k [Hkv, n, D], v [Hkv, n, Dv] of the n new tokens: post-RoPE, kv heads not repeated.
    out [Hq, n, Dv], the layer's attention output. `kv_len` rows were attended in the call (cache included).
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
    softcap: float
    sinks: Any
    q_prescaled: bool


def own_implementation(model):
    """Name of the implementation to delegate to: the model's, or "eager" where only that one is exact.

    sdpa leaves out attention sinks and refuses a softcap.
    """
    config = model.config.get_text_config()
    has_sinks = any(hasattr(module, "sinks") for module in model.modules())
    if has_sinks or getattr(config, "attn_logit_softcapping", None):
        return "eager"
    return model.config._attn_implementation or "eager"


def own_function(base, module):
    """The attention function behind the name `base` for this attention module."""
    function = AttentionInterface().get(base)
    if function is None:
        function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise DumpError(f"{type(module).__name__} has no {base} attention function to delegate to")
    return function


@contextmanager
def own_attention(model):
    """While it is entered, `model` attends as it does under the hook, without the hook: by the implementation
    that the hook delegates to, which need not be the one that the model would choose."""
    before = model.config._attn_implementation
    model.set_attn_implementation(own_implementation(model))
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _nobody_listens(*_, **__):
    raise DumpError("the recording is over, but a model still calls its hook")


class NamedAttention:
    """Context manager: while it is entered, every attention call of `model` goes through `attend`."""

    def __init__(self, model):
        self.model = model
        self.base = own_implementation(model)
        self.before = model.config._attn_implementation
        self.name = None

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        """Attention output [1, n, Hq, Dv] of query [1, Hq, n, D], key and value [1, Hkv, T, .], and the
        weights or None. `own` is the function that the model would have called with the rest."""
        raise NotImplementedError

    def __enter__(self):
        masks = AttentionMaskInterface()
        if self.base not in masks:
            raise DumpError(f"attention implementation {self.base!r} makes no mask that kvdump knows")
        self.name = _free_names.pop() if _free_names else next(_new_names)
        AttentionInterface.register(self.name, self._forward)
        AttentionMaskInterface.register(self.name, masks[self.base])
        self.model.set_attn_implementation(self.name)
        return self

    def __exit__(self, *_):
        self.model.set_attn_implementation(self.before)
        # What stays registered holds on to no model.
        AttentionInterface.register(self.name, _nobody_listens)
        _free_names.append(self.name)

    def _forward(self, module, *args, **kwargs):
        return self.attend(own_function(self.base, module), module, *args, **kwargs)


class AttentionHook(NamedAttention):
    """While it is entered, `on_call(AttentionCall)` sees every attention call of `model`."""

    def __init__(self, model, on_call):
        super().__init__(model)
        self.on_call = on_call

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        output = own(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        self.on_call(_describe(module, query, key, value, output[0], scaling, kwargs))
        return output


def layer_of(module):
    """Layer index of an attention module."""
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise DumpError(f"{type(module).__name__} does not know its layer index")
    return layer


def _describe(module, query, key, value, out, scaling, kwargs):
    if query.shape[0] != 1:
        raise DumpError(f"batch of {query.shape[0]} sequences: record one sequence at a time")
    n = query.shape[2]
    default = query.shape[-1] ** -0.5
    passed = default if scaling is None else float(scaling)
    own = getattr(module, "scaling", None)
    sinks = kwargs.get("s_aux")
    return AttentionCall(
        layer=layer_of(module),
        module=module,
        q=query[0].detach(),
        # A cached call hands over the whole cache (a windowed layer: its window); the new rows are the last.
        k=key[0, :, -n:].detach(),
        v=value[0, :, -n:].detach(),
        out=out[0].detach().transpose(0, 1),
        kv_len=key.shape[2],
        scaling=passed,
        sliding_window=int(kwargs.get("sliding_window") or 0),
        softcap=float(kwargs.get("softcap") or 0.0),
        sinks=None if sinks is None else sinks.detach(),
        # OPT scales q itself and passes 1; elsewhere the passed scale is the module's own.
        q_prescaled=isinstance(own, float) and passed == 1.0 and own != 1.0,
    )
