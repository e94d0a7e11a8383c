"""`--verify` of branches.

Two checks: the keys of the context that a branch's pass reads are those of the context, bit by bit; and the
branch's rows equal those of one pass over context and branch without a cache.
"""

import copy

import numpy as np
import torch
from kvtrace.disk_file import open_hdf5
from kvtrace.dtypes import read_floats, stored_dtype, widen

from .attention import mean_relative_deviation
from .branches import GROUP
from .hook import AttentionHook
from .repeat import positions_after, positions_or_none, run_at_once, run_cached
from .rows_in_memory import to_stored
from .verify import Check, rows_bound


def verify_branches(model, path):
    """List of Check for every prompt of a published trace with branches."""
    with open_hdf5(path) as trace, torch.no_grad():
        return [
            check
            for prompt_id, prompt in trace["prompts"].items()
            if GROUP in prompt
            for check in _checks(model, prompt_id, prompt)
        ]


def _checks(model, prompt_id, prompt):
    n_context = int(prompt[GROUP].attrs["context_tokens"])
    context, positions = (prompt[name][:n_context].tolist() for name in ("tokens", "position_ids"))
    positions = positions_or_none(positions)
    read, off = {}, {}

    def on_context(call):
        name = f"{call.layer:03d}"
        if name in prompt["layers"]:
            read[call.layer] = call.all_k
            stored, keys = next(iter(call.cached().items()))
            dtype = stored_dtype(prompt["layers"][name][stored])
            recorded = read_floats(prompt["layers"][name][stored])[..., :n_context, :]
            off[call.layer] = float(np.abs(widen(to_stored(keys, dtype), dtype) - recorded).max())

    with AttentionHook(model, on_context):
        cache = run_cached(model, context, positions).past_key_values
    # Only then were the recorded keys computed in a pass over exactly these tokens.
    bound = 0.0 if len(prompt["tokens"]) == n_context else np.inf
    yield Check(prompt_id, "keys of the context, run once more", max(off.values()), bound)
    for number, branch in prompt[GROUP].items():
        tokens = branch["tokens"][...].tolist()
        behind = positions_after(positions, len(tokens))
        kept = _context_difference(model, tokens, behind, copy.deepcopy(cache), read)
        yield Check(prompt_id, f"branch {number}: keys of the context, bit by bit", kept, 0.0)
        whole = positions and positions + behind
        yield from _row_checks(model, prompt_id, number, branch, context + tokens, whole)


def _context_difference(model, tokens, positions, cache, read):
    """Largest difference between the context's keys that a branch reads and those that its own pass read."""
    off = []

    def on_call(call):
        if call.layer in read:
            before = call.kv_len - call.q.shape[1]
            own = read[call.layer][:, read[call.layer].shape[1] - before :]
            off.append(float((call.all_k[:, :before] - own).abs().max()) if before else 0.0)

    with AttentionHook(model, on_call):
        run_cached(model, tokens, positions, past_key_values=cache)
    return max(off)


def _row_checks(model, prompt_id, number, branch, ids, positions):
    """The branch's rows of each layer against one pass over context and branch."""
    found = {}

    def on_call(call):
        name = f"{call.layer:03d}"
        if name not in branch["layers"]:
            return
        group = branch["layers"][name]
        rows = group["q"].shape[1]
        found[call.layer] = max(
            (
                mean_relative_deviation(read_floats(group[tensor]), _last(live, rows, group[tensor].ndim)),
                rows_bound(stored_dtype(group[tensor]), model.dtype),
            )
            for tensor, live in {"q": call.q, **call.cached()}.items()
        )

    with AttentionHook(model, on_call):
        run_at_once(model, ids, positions)
    for layer, (deviation, bound) in found.items():
        what = f"branch {number}, layer {layer}: rows against one pass over context and branch"
        yield Check(prompt_id, what, deviation, bound)


def _last(live, rows, ndim):
    """The last rows of a pass, in the trace's shape."""
    values = live.detach().double().cpu().numpy()[:, -rows:]
    return values if ndim == 3 else values[0]
