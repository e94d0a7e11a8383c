"""What the attention block adds to, for `--with-output`: the output projection and the residual stream."""

from .errors import DumpError


def o_proj_of(module):
    """Output projection of an attention module."""
    projections = [getattr(module, name) for name in ("o_proj", "out_proj", "dense") if hasattr(module, name)]
    if not projections:
        raise DumpError(f"--with-output: {type(module).__name__} has no output projection that kvdump knows")
    return projections[0]


def o_proj_weights(module, n_heads):
    """Its weights as [Hq, Dv, hidden]: out[h] @ o_proj[h] summed over h."""
    weight = o_proj_of(module).weight
    return weight.reshape(weight.shape[0], n_heads, -1).permute(1, 2, 0)


def blocks_of(model, layers):
    """[(layer, block)] of the blocks with attention whose layer is one of `layers`."""
    found = []
    for block in model.modules():
        layer = getattr(getattr(block, "self_attn", None), "layer_idx", None)
        if layer in layers:
            found.append((layer, block))
    return found


def joining(block):
    """What a block does with its attention's output [..., hidden] before it adds that to the stream."""
    # Where the feed-forward part has a norm of its own, the one behind the attention stands before the sum.
    before_sum = hasattr(block, "pre_feedforward_layernorm")
    norm = getattr(block, "post_attention_layernorm", None) if before_sum else None
    factor = getattr(block, "residual_multiplier", 1)
    return lambda out: (norm(out) if norm is not None else out) * factor


def watch_residual(model, layers, on_residual):
    """Call `on_residual(layer, residual [1, n, hidden])` with the stream after the attention block was added.

    That sum is the input of the norm before the feed-forward part. Its name says which layout a block has;
    an unknown layout is refused. Returns the hooks' handles.
    """
    handles = []
    for layer, block in blocks_of(model, layers):

        def tap(_, args, layer=layer):
            on_residual(layer, args[0])

        handles.append(_norm_before_feed_forward(block).register_forward_pre_hook(tap))
    if len(handles) != len(layers):
        raise DumpError(
            "--with-output: kvdump does not know the layout of the model's blocks; use --out-layers"
        )
    return handles


def _norm_before_feed_forward(block):
    if hasattr(block, "pre_feedforward_layernorm"):
        return block.pre_feedforward_layernorm
    # With a norm after the feed-forward part, post_attention_layernorm sees the attention output alone.
    if hasattr(block, "post_attention_layernorm") and not hasattr(block, "post_feedforward_layernorm"):
        return block.post_attention_layernorm
    raise DumpError(
        f"--with-output: {type(block).__name__} has no residual norm that kvdump knows; use --out-layers"
    )
