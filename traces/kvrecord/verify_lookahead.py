"""`--verify` of rows that were generated after a cut prompt.

Two checks: one pass after the whole prompt, with a mask that hides the evicted tokens, gives equal rows; and
each token is the most likely one there.
"""

import numpy as np
from kvtrace.disk_file import open_hdf5
from kvtrace.dtypes import read_floats, stored_dtype

from .attention import mean_relative_deviation
from .lookahead import lookahead_by_mask
from .repeat import positions_or_none
from .sinks import layer_group
from .snapkv_cut import Cut
from .verify import Check, rows_bound


def verify_lookahead(model, path):
    """List of Check for every prompt of a published trace with lookahead rows."""
    with open_hdf5(path) as trace:
        return [
            check
            for prompt_id, prompt in trace["prompts"].items()
            if "lookahead" in prompt
            for check in _checks(model, trace, prompt_id)
        ]


def _checks(model, trace, prompt_id):
    prompt = trace[f"prompts/{prompt_id}"]
    group = prompt["lookahead"]
    tokens, n_context = group["tokens"][...].tolist(), int(group.attrs["context_tokens"])
    context, positions = (prompt[name][:n_context].tolist() for name in ("tokens", "position_ids"))
    cut = Cut(*(int(group.attrs[name]) for name in ("budget", "window", "kernel")))
    off, bounds = {}, []

    def on_row(call):
        name = layer_group(prompt_id, call.layer)
        if name in trace and "lookahead_q" in trace[name]:
            stored = trace[name]["lookahead_q"]
            live = call.q.detach().double().cpu().numpy()
            off[call.layer] = mean_relative_deviation(read_floats(stored), live)
            bounds.append(rows_bound(stored_dtype(stored), model.dtype))

    logits = (
        lookahead_by_mask(model, context, tokens, cut, on_row, positions_or_none(positions))[:-1]
        .cpu()
        .numpy()
    )
    worst = max(bounds, default=0.0)
    yield Check(
        prompt_id, "lookahead tokens against the likeliest ones", _likelihood_gap(logits, tokens), worst
    )
    for (layer, deviation), bound in zip(off.items(), bounds, strict=True):
        what = f"layer {layer}: lookahead rows against one pass after the masked prompt"
        yield Check(prompt_id, what, deviation, bound)


def _likelihood_gap(logits, tokens):
    """Largest gap between a token's logit and the row's largest logit, relative to the largest minus the
    mean."""
    top, chosen = logits.max(1), logits[np.arange(len(tokens)), tokens]
    return float(((top - chosen) / np.maximum(top - logits.mean(1), np.finfo(np.float32).tiny)).max())
