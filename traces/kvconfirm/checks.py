"""Checks that results, trace and model belong together, before anything is measured."""

import torch
from kvbase.errors import ConfigError, TraceError
from kvrecord.attention import mean_relative_deviation
from kvrecord.hook import base_attention
from kvrecord.model import shape_of
from kvrecord.verify import TOLERANCE_HALF_MODEL, TOLERANCE_ROWS

from .table import spans

# Largest difference of logits between two orders of the same sums.
TOLERANCE_LOGITS = 1e-4


def instances_of_trace(results, trace):
    """Instances of this trace. ConfigError if there are none."""
    found = [i for i in results.instances if i.trace_id == trace.id]
    if not found:
        ids = ", ".join(name[:12] for name in results.trace_ids())
        raise ConfigError(
            f"{results.folder}: results for trace {ids}, but {trace.path} is trace {trace.id[:12]}: "
            "give the trace that was replayed"
        )
    return found


def check_prompts(instances, trace):
    """ConfigError if the trace lacks a prompt of the results, or holds fewer of its tokens."""
    for prompt in sorted({i.prompt for i in instances}):
        if prompt not in trace.prompts():
            raise ConfigError(
                f"{trace.path}: no prompt {prompt}, which the results hold: "
                f"it has {', '.join(trace.prompts())}"
            )
        replayed = max(i.n_tokens for i in instances if i.prompt == prompt)
        held = trace.n_tokens(prompt)
        if held < replayed:
            raise ConfigError(f"{trace.path}: prompt {prompt} has {held} tokens, the results have {replayed}")


def check_shape(config, trace):
    """ConfigError if the model's sizes differ from those in the trace."""
    shape = shape_of(config)
    for name, recorded in trace.shape().items():
        if getattr(shape, name) != recorded:
            raise ConfigError(
                f"the model has {name} = {getattr(shape, name)}, {trace.path} was recorded from a model with "
                f"{recorded}: give --model {trace.model}"
            )


def check_layers(layers, instance, trace):
    """ConfigError if the results lack one of the layers to compress, or one of its kv heads."""
    held = sorted({layer for layer, _ in instance.cells})
    missing = [layer for layer in layers if instance.replayed(layer) not in held]
    if missing:
        raise ConfigError(
            f"{instance.name}: the results hold layers {spans(held)}, not {spans(missing)}: "
            f"replay a trace of all layers, or compress only these with --layers {','.join(map(str, held))}"
        )
    for layer in layers:
        caches = trace.caches(instance.prompt, layer)
        replayed = instance.replayed(layer)
        heads = [head for head in range(caches) if (replayed, head) not in instance.cells]
        if heads:
            raise ConfigError(
                f"{instance.name}: the results lack kv heads {spans(heads)} of layer {layer}: "
                "replay with select.kv_heads: all"
            )


class KeyCheck:
    """`watch` callback of PromptRun: compares the model's keys with the trace's, in the first and the last
    recorded layer. ConfigError if they differ. `also`: a further callback."""

    def __init__(self, trace, prompt, half, also=None):
        recorded = trace.layers(prompt)
        self.layers = {recorded[0], recorded[-1]}
        self.trace, self.prompt, self.half, self.also = trace, prompt, half, also
        self.deviation = 0.0
        self.seen = False

    def __call__(self, call):
        self.seen = True
        if self.also:
            self.also(call)
        if call.layer not in self.layers:
            return
        latents = call.latent if self.trace.is_latent(self.prompt, call.layer) else None
        live = call.k if latents is None else latents.keys(rotated_first=True)
        kept = live.shape[1]
        keys, stored = self.trace.keys(self.prompt, call.layer, kept)
        found = live.double().cpu().numpy()
        deviation = mean_relative_deviation(found[:, : keys.shape[1]], keys.astype("float64"))
        bound = max(TOLERANCE_ROWS[stored], TOLERANCE_HALF_MODEL if self.half else 0)
        self.deviation = max(self.deviation, deviation)
        if not deviation <= bound:
            raise ConfigError(
                f"prompt {self.prompt}, layer {call.layer}: the model's keys differ from the recorded "
                f"ones by {deviation:.1e} (at most {bound:.0e}): {self.trace.path} was not made by this model"
            )


def check_full_run(run, attention, every_row):
    """Checks the full model's run. Returns {check: largest difference of logits}; TraceError beyond
    tolerance.

    With the hook and no mask, the logits must equal those of the plain model bit by bit. With a mask that
    shows every token, and in one pass without a cache, they must be equal up to the order of sums.
    """
    hooked = run.decode(None)
    attention.__exit__()
    with base_attention(run.model):
        plain = run.decode(None)
        # Logits of a large vocabulary take a gigabyte: each tensor is freed before the next is made.
        found = {"without_mask": _largest(hooked, plain)}
        del hooked
        found["one_pass"] = _largest(run.in_one_pass(), plain)
    attention.__enter__()
    found["mask_of_all"] = _largest(run.decode(every_row), plain)
    if found["without_mask"] != 0 or not found["mask_of_all"] <= logits_bound(run.model, plain):
        raise TraceError(f"the full model is not reproduced: logits differ by {found}")
    return found


def logits_bound(model, logits):
    """By how much logits of a model may differ between two orders of the same sums."""
    return TOLERANCE_HALF_MODEL * float(logits.abs().max()) if is_half(model) else TOLERANCE_LOGITS


def is_half(model):
    """Whether a model computes in half precision."""
    return model.dtype in (torch.float16, torch.bfloat16)


def _largest(one, other):
    """Largest difference between two tensors of logits [R, vocabulary], computed row by row; NaN if one holds
    NaN."""
    return float(torch.stack([(a - b).abs().max() for a, b in zip(one, other, strict=True)]).max())
