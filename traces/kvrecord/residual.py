"""The output projection and the residual stream of attention blocks, for `--with-output`."""

import torch
from kvbase.errors import TraceError
from transformers.pytorch_utils import Conv1D

ATTENTION_NAMES = ("self_attn", "attn", "attention")
PROJECTION_NAMES = ("o_proj", "out_proj", "dense", "c_proj")


def o_proj_of(module):
    """Output projection of an attention module. TraceError if it has none."""
    projections = [getattr(module, name) for name in PROJECTION_NAMES if hasattr(module, name)]
    if not projections:
        raise TraceError(
            f"--with-output: {type(module).__name__} has no output projection that the recorder knows; "
            "use --out-layers"
        )
    return projections[0]


def o_proj_weights(module, n_heads):
    """Weights of the output projection, [Hq, Dv, hidden]: it computes the sum over h of out[h] @ o_proj[h],
    plus its bias. TraceError if the weights are quantised."""
    projection = o_proj_of(module)
    # GPT-2's Conv1D stores [in, out], a linear layer [out, in].
    weight = getattr(projection, "weight", None)
    if not _is_plain(weight, 0 if isinstance(projection, Conv1D) else 1, n_heads):
        raise TraceError(
            f"--with-output: {type(projection).__name__} does not store its weights as a matrix of numbers "
            "(quantised); use --out-layers"
        )
    weight = weight.T if isinstance(projection, Conv1D) else weight
    return weight.reshape(weight.shape[0], n_heads, -1).permute(1, 2, 0)


def _is_plain(weight, axis, n_heads):
    plain = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if not isinstance(weight, torch.Tensor) or weight.dtype not in plain or weight.ndim != 2:
        return False
    return weight.shape[axis] % n_heads == 0


def watch_projected(modules, on_projected):
    """Calls `on_projected(layer, x [batch, n, Hq Dv])` with what the output projection of each of the modules
    {layer: attention module} receives. Returns the hooks, each with `remove`."""

    def listen(layer):
        return lambda _, args: on_projected(layer, args[0].detach())

    return [o_proj_of(module).register_forward_pre_hook(listen(layer)) for layer, module in modules.items()]


def gate_of(projected, out):
    """The factor [Hq, n, Dv] that stands between outputs `out` [Hq, n, Dv] and what is projected [n, Hq Dv];
    0 where the output is 0."""
    by_head = projected.unflatten(-1, (out.shape[0], -1)).transpose(0, 1)
    return torch.where(out == 0, 0, by_head / torch.where(out == 0, 1, out))


def attention_of(block):
    """The attention module of a block, or None."""
    modules = (getattr(block, name, None) for name in ATTENTION_NAMES)
    return next((module for module in modules if isinstance(getattr(module, "layer_idx", None), int)), None)


def blocks_of(model, layers):
    """[(layer, block)] for the blocks whose attention has one of the layer numbers `layers`."""
    found = ((attention_of(block), block) for block in model.modules())
    return [(a.layer_idx, block) for a, block in found if a is not None and a.layer_idx in layers]


def norm_before_sum(block):
    """The norm that a block applies to its attention's output before adding it to the stream, or None."""
    if hasattr(block, "post_self_attn_layernorm"):
        return block.post_self_attn_layernorm
    # If the feed-forward part has its own norms, post_attention_layernorm is applied before the sum.
    own = hasattr(block, "pre_feedforward_layernorm") or hasattr(block, "post_feedforward_layernorm")
    return getattr(block, "post_attention_layernorm", None) if own else None


def joining(block):
    """J: the function that a block applies to its attention's output [..., hidden] before adding it to the
    stream: a norm, a factor, or nothing."""
    norm = norm_before_sum(block)
    factor = getattr(block, "residual_multiplier", getattr(block, "residual_scale", 1))
    return lambda out: (norm(out) if norm is not None else out) * factor


class BlockTap:
    """Hooks one block: calls `on_sum(x + J(a))` after its attention, where x [batch, n, hidden] is the
    block's input, a its attention module's output and J the function from `joining`.

    A block that adds attention and feed-forward part at once never computes this sum itself.
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
        """Removes the hooks."""
        for handle in self.handles:
            handle.remove()

    def _on_block(self, _, args, kwargs):
        self.stream = args[0] if args else kwargs["hidden_states"]

    def _on_attention(self, _, args, output):
        self.on_sum(self.stream + self.join(first_of(output)))


def first_of(output):
    """The first of a module's results, or its only one."""
    return output[0] if isinstance(output, tuple | list) and output else output


def watch_residual(blocks, on_residual):
    """Calls `on_residual(layer, residual [batch, n, hidden])` with the stream after adding the attention's
    output.

    `blocks`: [(layer, block)] that `layout.check_layout` accepts. Returns the hooks, each with `remove`.
    """
    return [
        BlockTap(block, lambda residual, layer=layer: on_residual(layer, residual)) for layer, block in blocks
    ]
