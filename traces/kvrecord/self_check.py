"""Checks on the first pass of every prompt that a trace describes a layer's attention completely.

A trace records scale, window, chunk, soft cap and sinks. It cannot record sparse attention, a bias on the
logits, or attention to later keys; in these cases the recorded rows do not reproduce the layer's output.
"""

import numpy as np
import torch
from kvbase.errors import TraceError

from .attention import exact_attention, mean_relative_deviation, rounding_reach

# 16 bit: weights and sums are rounded. An unrecorded part of the attention moves a row by more.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
TOLERANCE_HALF = 5e-2
# Large logits that are rounded to 16 bit before the softmax move a row further: at most this is accepted.
TOLERANCE_ROUNDED = 0.25
# How often a logit is rounded: after q k, and after scaling.
ROUNDINGS = 2


def check_output_reproduced(call):
    """TraceError unless exact attention over the call's rows gives its output, at the middle and the last
    row.

    `call` must begin its sequence, so that it holds all keys.
    """
    rows = sorted({call.q.shape[1] // 2, call.q.shape[1] - 1})
    rows_of = (
        _floats(call.q[:, rows]),
        _floats(call.k),
        _floats(call.v),
        np.array(rows),
        call.scaling,
        call.sliding_window,
        call.softcap,
        None if call.sinks is None else _floats(call.sinks),
        call.attention_chunk,
    )
    found = exact_attention(*rows_of)
    deviation = mean_relative_deviation(found, _floats(call.out[:, rows]))
    # NaN passes here; the check of the stored rows reports it.
    if deviation > TOLERANCE.get(call.q.dtype, TOLERANCE_HALF) and deviation > _rounded(call, found, rows_of):
        raise TraceError(
            f"layer {call.layer}: {type(call.module).__name__} does more than a trace can record (a "
            "sparse mask, a bias, later keys): attention over the recorded rows is off by "
            f"{deviation:.1e}; leave this layer out with --layers"
        )


def _rounded(call, found, rows_of):
    """The deviation that rounding the logits to the call's 16-bit type explains; 0 for other types."""
    if call.q.dtype in TOLERANCE:
        return 0.0
    unit = torch.finfo(call.q.dtype).eps / 2
    share = rounding_reach(*rows_of) / np.maximum(np.linalg.norm(found, axis=-1), np.finfo(np.float64).tiny)
    return min(float(ROUNDINGS * unit * share.mean()), TOLERANCE_ROUNDED)


def _floats(tensor):
    return tensor.detach().float().cpu().numpy()
