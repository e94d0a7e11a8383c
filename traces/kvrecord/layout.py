"""Checks on one token that the recording of `--with-output` would be correct, without trusting names.

A trace with `--with-output` states that a layer's block adds J(out @ o_proj + bias) to the residual stream.
The check runs one token through the blocks. Each block gets a small random stream, because rounding of a
large one would hide what the block adds. The projection must give what the attention module returned. The
sum must appear either as the input of another part of the block (the norm before the feed-forward part), or
in the block's output, together with the feed-forward part.

A gate may multiply each number of the output before it is projected (Qwen3-Next). A second pass, in which
every output is multiplied by a factor of its own, tells a gate from a norm or a mixture of channels.
"""

import torch
from kvbase.errors import TraceError

from .hook import AttentionHook
from .residual import (
    BlockTap,
    attention_of,
    blocks_of,
    first_of,
    o_proj_of,
    o_proj_weights,
    watch_projected,
)

# Relative errors; a gate, a factor or a norm that is not accounted for causes more than 0.1.
TOLERANCE = 1e-3
TOLERANCE_HALF = 3e-2
# If rounding alone reaches this share of what the attention adds, a matching sum proves nothing.
MEANINGFUL = 0.2
STREAM = 0.02  # root mean square of each block's random input stream


class _Probe:
    """Observations of one block during one token's pass, from `listen` until `remove`."""

    def __init__(self, block):
        self.block = block
        self.stream = self.sum = self.call = self.returned = self.output = None
        self.projected = None  # what the output projection received, [Hq Dv]
        self.inputs = []
        self.outputs = []
        self.handles = []

    def listen(self):
        attention = attention_of(self.block)
        add = self.handles.append
        # Registered before the tap, which must see the replaced stream.
        add(self.block.register_forward_pre_hook(self._give_stream, with_kwargs=True))
        add(attention.register_forward_hook(self._on_attention))
        for tap in watch_projected({0: attention}, self._on_projected):
            add(tap)
        add(BlockTap(self.block, self._on_sum))
        add(self.block.register_forward_hook(self._on_block))
        for part in self.block.children():
            if part is not attention:
                add(part.register_forward_hook(self._on_part))

    def remove(self):
        for handle in self.handles:
            handle.remove()

    def _give_stream(self, _, args, kwargs):
        own = args[0] if args else kwargs["hidden_states"]
        drawn = torch.randn(own.shape, generator=torch.Generator().manual_seed(0))
        given = (STREAM * drawn).to(own)
        self.stream = _flat(given)
        return ((given, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": given})

    def _on_attention(self, _, args, output):
        self.returned = _flat(first_of(output))

    def _on_projected(self, _, x):
        self.projected = _flat(x)

    def _on_sum(self, total):
        self.rounding = torch.finfo(total.dtype).eps / 2
        self.sum = _flat(total)

    def _on_block(self, _, args, output):
        self.output = _flat(first_of(output))

    def _on_part(self, _, args, output):
        # Only parts that run after the attention can have received the sum.
        if self.sum is not None and args:
            self.inputs.append(_flat(args[0]))
        self.outputs.append(_flat(first_of(output)))

    def has_sum(self, tolerance):
        """Is x + J(a) the input of a part, or the block's output without one part's result?"""
        if self.sum is None or self.output is None or self.output.shape != self.sum.shape:
            return False
        added = (self.sum - self.stream).norm()
        if self.returned is not None and not self.returned.any():
            # The attention returned zeros: if J(0) = 0 the block must add nothing.
            return not bool(added)
        rest = self.output - self.sum
        # The bound is relative to J(a), not to the stream: two sums are each rounded by half a unit.
        received = 2 * self.rounding * self.sum.norm()
        handed_on = 2 * self.rounding * (self.sum.norm() + self.output.norm())

        def told(found, expected, rounding):
            bound = tolerance * added + rounding
            same = found is not None and found.shape == expected.shape
            return same and bool(bound <= MEANINGFUL * added and (found - expected).norm() <= bound)

        return any(told(x, self.sum, received) for x in self.inputs) or any(
            told(x, rest, handed_on) for x in self.outputs
        )

    def projects(self, tolerance):
        """Is the projection of what it received, plus its bias, what the attention module returned?"""
        module = self.call.module
        weights = o_proj_weights(module, self.call.out.shape[0])
        projected = self.projected.to(weights.dtype) @ weights.flatten(0, 1)
        bias = getattr(o_proj_of(module), "bias", None)
        found = _flat(projected if bias is None else projected + bias)
        if self.returned is None or found.shape != self.returned.shape:
            return False
        return bool((found - self.returned).norm() <= tolerance * self.returned.norm())

    def is_plain(self, tolerance):
        """Is the attention's output what is projected?"""
        out = _flat(self.call.out.transpose(0, 1))
        return bool((self.projected - out).norm() <= tolerance * out.norm())


def _flat(result):
    """The tensor flattened, in float32 or float64; None for anything else that a module may return."""
    if not isinstance(result, torch.Tensor):
        return None
    flat = result.detach().flatten()
    return flat if flat.dtype == torch.float64 else flat.float()


def check_layout(model, layers):
    """The layers with a gate before the projection. TraceError, with the remedy, if `o_proj`, a gate and the
    residual stream do not describe what a block adds."""
    blocks = blocks_of(model, layers)
    probes = _observed(model, blocks)
    tolerance = TOLERANCE_HALF if model.dtype in (torch.float16, torch.bfloat16) else TOLERANCE
    for layer in layers:
        probe = probes.get(layer)
        if probe is None or not probe.has_sum(tolerance):
            what = type(probe.block if probe else model).__name__
            raise TraceError(
                f"--with-output: layer {layer}: the layout of {what} is unknown to the recorder; use "
                "--out-layers"
            )
    gated = {layer for layer in layers if not probes[layer].is_plain(tolerance)}
    scaled = _observed(model, blocks, _ScaledOutput) if gated else probes
    for layer in layers:
        probe = probes[layer]
        changed = layer in gated and not _is_gate(probe, scaled[layer], tolerance)
        if changed or not probe.projects(tolerance):
            raise TraceError(
                f"--with-output: layer {layer}: {type(probe.call.module).__name__} changes its output before "
                "it is projected in a way that is no gate, so o_proj does not describe what it adds; use "
                "--out-layers"
            )
    return gated


def _is_gate(probe, scaled, tolerance):
    """Whether factors of the outputs [Hq, 1, Dv] are factors of what is projected."""
    expected = probe.projected * _flat(_factor(probe.call.out).transpose(0, 1))
    return bool((scaled.projected - expected).norm() <= tolerance * expected.norm())


def _factor(out):
    """A factor from 0.5 to 1.5 for every number of an output [Hq, n, Dv]."""
    drawn = torch.rand(out.shape, generator=torch.Generator().manual_seed(1))
    return (0.5 + drawn).to(out)


class _ScaledOutput(AttentionHook):
    """Multiplies every attention output [1, n, Hq, Dv] by its factor."""

    def attend(self, *args, **kwargs):
        out, *rest = super().attend(*args, **kwargs)
        return (out * _factor(out[0].transpose(0, 1)).transpose(0, 1)[None], *rest)


def _observed(model, blocks, hook=AttentionHook):
    """{layer: _Probe} after a pass of one token under a hook."""
    probes = {layer: _Probe(block) for layer, block in blocks}

    def on_call(call):
        if call.layer in probes:
            probes[call.layer].call = call

    token = torch.tensor([[model.config.get_text_config().vocab_size // 3]], device=model.device)
    try:
        for probe in probes.values():
            probe.listen()
        with hook(model, on_call), torch.no_grad():
            model(input_ids=token, use_cache=False)
    finally:
        for probe in probes.values():
            probe.remove()
    return probes
