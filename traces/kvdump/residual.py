"""What the attention block adds to, for `--with-output`: the output projection and the residual stream."""

import torch
from transformers.pytorch_utils import Conv1D

from .errors import DumpError

ATTENTION_NAMES = ("self_attn", "attn", "attention")
PROJECTION_NAMES = ("o_proj", "out_proj", "dense", "c_proj")


def o_proj_of(module):
    """Output projection of an attention module."""
    projections = [getattr(module, name) for name in PROJECTION_NAMES if hasattr(module, name)]
    if not projections:
        raise DumpError(
            f"--with-output: {type(module).__name__} has no output projection that kvdump knows; "
            "use --out-layers"
        )
    return projections[0]


def o_proj_weights(module, n_heads):
    """Its weights as [Hq, Dv, hidden]: out[h] @ o_proj[h] summed over h (its bias, if any, comes on top)."""
    projection = o_proj_of(module)
    # Conv1D of GPT-2 keeps [in, out], a linear layer [out, in].
    weight = getattr(projection, "weight", None)
    if not _is_plain(weight, 0 if isinstance(projection, Conv1D) else 1, n_heads):
        raise DumpError(
            f"--with-output: {type(projection).__name__} does not keep its weights as a matrix of numbers "
            "(quantised); use --out-layers"
        )
    weight = weight.T if isinstance(projection, Conv1D) else weight
    return weight.reshape(weight.shape[0], n_heads, -1).permute(1, 2, 0)


def _is_plain(weight, axis, n_heads):
    plain = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if not isinstance(weight, torch.Tensor) or weight.dtype not in plain or weight.ndim != 2:
        return False
    return weight.shape[axis] % n_heads == 0


def attention_of(block):
    """The attention module of a block, or None."""
    modules = (getattr(block, name, None) for name in ATTENTION_NAMES)
    return next((module for module in modules if isinstance(getattr(module, "layer_idx", None), int)), None)


def blocks_of(model, layers):
    """[(layer, block)] of the blocks with attention whose layer is one of `layers`."""
    found = ((attention_of(block), block) for block in model.modules())
    return [(a.layer_idx, block) for a, block in found if a is not None and a.layer_idx in layers]


def norm_before_sum(block):
    """The norm that a block puts between its attention's output and the residual stream, or None."""
    if hasattr(block, "post_self_attn_layernorm"):
        return block.post_self_attn_layernorm
    # Where the feed-forward part has norms of its own, the one behind the attention stands before the sum.
    own = hasattr(block, "pre_feedforward_layernorm") or hasattr(block, "post_feedforward_layernorm")
    return getattr(block, "post_attention_layernorm", None) if own else None


def joining(block):
    """What a block does with its attention's output [..., hidden] before it adds that to the stream."""
    norm = norm_before_sum(block)
    factor = getattr(block, "residual_multiplier", getattr(block, "residual_scale", 1))
    return lambda out: (norm(out) if norm is not None else out) * factor


class BlockTap:
    """Listens to one block: `on_sum(x + J(a))` after its attention, where x [1, n, hidden] is the block's
    input, a its attention module's output and J what `joining` says.

    In a block that adds attention and feed-forward part at once, that is the stream as it would be between.
    """

    def __init__(self, block, on_sum):
        self.join = joining(block)
        self.on_sum = on_sum
        self.stream = None
        self.handles = [
            block.register_forward_pre_hook(self._on_block, with_kwargs=True),
            attention_of(block).register_forward_hook(self._on_attention),
        ]

    def remove(self):
        """Listen no more."""
        for handle in self.handles:
            handle.remove()

    def _on_block(self, _, args, kwargs):
        self.stream = args[0] if args else kwargs["hidden_states"]

    def _on_attention(self, _, args, output):
        self.on_sum(self.stream + self.join(first_of(output)))


def first_of(output):
    """The tensor among a module's results."""
    return output[0] if isinstance(output, tuple | list) and output else output


def watch_residual(blocks, on_residual):
    """Call `on_residual(layer, residual [1, n, hidden])` with the stream after the attention block was added.

    `blocks`: [(layer, block)], laid out as assumed: `layout.check_layout` measures that. Returns the
    listeners, each with `remove`.
    """
    return [
        BlockTap(block, lambda residual, layer=layer: on_residual(layer, residual)) for layer, block in blocks
    ]
