"""Whether a trace can say what a layer's attention does, measured on the first pass of every prompt.

A trace knows scale, window, softcap and sinks. Chunked or sparse attention, a bias on the logits, or keys
that lie ahead would be left out without a word; then the recorded rows do not explain the layer's output.
"""

import numpy as np
import torch

from .attention import exact_attention, mean_relative_deviation, rounding_reach
from .errors import DumpError

# 16 bit: weights and sums are rounded on the way. What is left out moves a row by more.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
TOLERANCE_HALF = 5e-2
# Large logits, rounded to 16 bit before the softmax, move a row further: so far that is believed.
TOLERANCE_ROUNDED = 0.25
# Where a logit is rounded: q k, and once more when it is scaled.
ROUNDINGS = 2


def check_explained(call):
    """DumpError unless the call's own rows give its output, at the middle row and at the last.

    `call` begins its sequence: its keys are all there are.
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
    )
    found = exact_attention(*rows_of)
    deviation = mean_relative_deviation(found, _floats(call.out[:, rows]))
    # A NaN is for the check of the rows themselves to report.
    if deviation > TOLERANCE.get(call.q.dtype, TOLERANCE_HALF) and deviation > _rounded(call, found, rows_of):
        raise DumpError(
            f"layer {call.layer}: {type(call.module).__name__} does more than a trace can say (chunks, "
            "a sparse mask, a bias, keys ahead): attention over the recorded rows is off by "
            f"{deviation:.1e}; leave this layer out with --layers"
        )


def _rounded(call, found, rows_of):
    """The deviation that rounding the logits to the call's own 16 bits explains; 0 of other types."""
    if call.q.dtype in TOLERANCE:
        return 0.0
    unit = torch.finfo(call.q.dtype).eps / 2
    share = rounding_reach(*rows_of) / np.maximum(np.linalg.norm(found, axis=-1), np.finfo(np.float64).tiny)
    return min(float(ROUNDINGS * unit * share.mean()), TOLERANCE_ROUNDED)


def _floats(tensor):
    return tensor.detach().float().cpu().numpy()
